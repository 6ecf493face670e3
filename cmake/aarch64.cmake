# Toolchain file: compiles for Linux on aarch64 with GCC's cross compiler (Debian: g++-aarch64-linux-gnu),
# and runs what it has compiled by QEMU (Debian: qemu-user).
#
#   cmake -B build/arm -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DPACKHORSE_BUILD_TESTS=ON
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
find_program(PACKHORSE_QEMU qemu-aarch64)
if(PACKHORSE_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${PACKHORSE_QEMU} -L /usr/aarch64-linux-gnu)
endif()

# Programs, and packages of Python that are headers alone, are those of this machine.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
