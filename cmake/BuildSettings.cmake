# Compiler settings of every target of this project.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

# The kind of processor that is compiled for.
string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" PACKHORSE_PROCESSOR)
if(PACKHORSE_PROCESSOR STREQUAL "amd64")
  set(PACKHORSE_PROCESSOR x86_64)
elseif(PACKHORSE_PROCESSOR STREQUAL "arm64")
  set(PACKHORSE_PROCESSOR aarch64)
endif()

# Hardening: an error in memory ends the process rather than serves an attacker.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT PACKHORSE_SANITIZE)  # it needs optimised code
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-U_FORTIFY_SOURCE> $<$<COMPILE_LANGUAGE:CXX>:-D_FORTIFY_SOURCE=2>)
endif()
add_link_options($<$<LINK_LANGUAGE:CXX>:-Wl,-z,relro,-z,now>)

# Sets `result` to whether the processor that is compiled for is this machine's and has a feature, as
# Linux names it; where that is not known, to whether it may have.
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo PACKHORSE_FEATURES REGEX "^(flags|Features)" LIMIT_COUNT 1)
endif()
function(processor_has feature result)
  set(has OFF)
  if(CMAKE_CROSSCOMPILING OR NOT PACKHORSE_FEATURES
     OR "${PACKHORSE_FEATURES} " MATCHES "[ :]${feature} ")
    set(has ON)
  endif()
  set(${result} ${has} PARENT_SCOPE)
endfunction()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Interface of code inside the walls: private headers, and warnings on (generated code does without).
add_library(packhorse_internal INTERFACE)
target_include_directories(packhorse_internal INTERFACE
  "${PROJECT_SOURCE_DIR}/runtime" "${PROJECT_SOURCE_DIR}/runtime/include")
target_compile_options(packhorse_internal INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: "text" + std::string() is reported.
  target_compile_options(packhorse_internal INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(PACKHORSE_PROCESSOR STREQUAL "aarch64")
  # Its compilers fuse multiplications and additions of expressions as they see fit, which no code
  # outside of the vector kernels would ask for.
  target_compile_options(packhorse_internal INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
endif()
if(PACKHORSE_WERROR)
  target_compile_options(packhorse_internal INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

if(PACKHORSE_SANITIZE)
  # Leaves out the checks of pointers that only say earlier what AddressSanitizer finds at the access:
  # they are a quarter of the compiler's time.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
                      -fno-sanitize=null,object-size,vptr,pointer-overflow
                      -fno-omit-frame-pointer -g1 -O1)
  add_link_options(-fsanitize=address,undefined)
endif()

# Has the compiler read common headers once instead of once for each file of `target`, where that is
# asked for: those of the standard library are compiled before, and files that `TOGETHER` allows are
# compiled eight at a time. A file that lacks an include compiles all the same then, so that other
# builds go without; and ccache keeps nothing of such a target.
function(build_fast target)
  if(NOT PACKHORSE_FAST_BUILD OR CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
    return()
  endif()
  target_precompile_headers(${target} PRIVATE
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring>
    <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread> <utility>
    <variant> <vector>)
  if("TOGETHER" IN_LIST ARGN)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()
