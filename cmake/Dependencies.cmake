# Finds oneDNN (DNNL::dnnl), the JSON header (packhorse_json), libgomp and the CUDA compiler, and
# decides which backends are built (PACKHORSE_WITH_CPU, PACKHORSE_WITH_CUDA).
#
# A library that CMake finds by itself comes first; otherwise the pinned Python packages listed as
# build requirements in pyproject.toml are used, wherever pip put their files.
find_package(Python 3.10 QUIET COMPONENTS Interpreter)

# Sets `result` to the folder of the file whose path ends with `suffix` in an installed Python
# distribution, or to an empty string.
function(find_in_python_package result distribution suffix)
  set(folder "")
  if(Python_Interpreter_FOUND)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c "
import sys
from importlib.metadata import files
name, suffix = sys.argv[1:]
print(next(f.locate().resolve().parent for f in files(name) if str(f).endswith(suffix)), end='')"
              "${distribution}" "${suffix}"
      OUTPUT_VARIABLE folder ERROR_QUIET)
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# JSON ------------------------------------------------------------------------------------------
find_in_python_package(folder nlohmann-json include/nlohmann/json.hpp)
find_path(PACKHORSE_JSON_INCLUDE_DIR nlohmann/json.hpp HINTS "${folder}/..")
if(NOT PACKHORSE_JSON_INCLUDE_DIR)
  message(FATAL_ERROR "nlohmann/json.hpp not found: pip install nlohmann-json, "
                      "or set PACKHORSE_JSON_INCLUDE_DIR")
endif()
add_library(packhorse_json INTERFACE)
target_include_directories(packhorse_json SYSTEM INTERFACE "${PACKHORSE_JSON_INCLUDE_DIR}")

# oneDNN, for the CPU backend on x86-64; that on aarch64 needs no library ---------------------------
set(PACKHORSE_WITH_CPU FALSE)
set(PACKHORSE_BUNDLE_DNNL FALSE)  # install libdnnl and libgomp beside libpackhorse
if(PACKHORSE_CPU AND PACKHORSE_PROCESSOR STREQUAL "aarch64")
  set(PACKHORSE_WITH_CPU TRUE)
elseif(PACKHORSE_CPU AND PACKHORSE_PROCESSOR STREQUAL "x86_64")
  # The package files of oneDNN 3.2 ask for policies older than CMake 4 knows.
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)
  # Not through PATH: a virtual environment there would win over a newer system library.
  find_package(dnnl 3.2 CONFIG QUIET NO_SYSTEM_ENVIRONMENT_PATH)
  if(NOT dnnl_FOUND)
    find_in_python_package(folder onednn-devel-cpu-gomp dnnl-config.cmake)
    find_package(dnnl 3.2 CONFIG QUIET PATHS "${folder}" NO_DEFAULT_PATH)
    set(PACKHORSE_BUNDLE_DNNL TRUE)
  endif()
  unset(CMAKE_POLICY_VERSION_MINIMUM)
  if(dnnl_FOUND)
    set(PACKHORSE_WITH_CPU TRUE)
    message(STATUS "oneDNN ${dnnl_VERSION}: ${dnnl_DIR}")
  elseif(NOT PACKHORSE_CPU STREQUAL "AUTO")
    message(FATAL_ERROR "oneDNN >= 3.2 not found: pip install onednn-cpu-gomp==2023.2.0 "
                        "onednn-devel-cpu-gomp==2023.2.0, or set dnnl_DIR")
  endif()
endif()
if(PACKHORSE_CPU STREQUAL "ON" AND NOT PACKHORSE_WITH_CPU)
  message(FATAL_ERROR "there is no CPU backend for ${CMAKE_SYSTEM_PROCESSOR}, only for x86_64 and aarch64")
endif()
if(SKBUILD AND TARGET DNNL::dnnl)
  set(PACKHORSE_BUNDLE_DNNL ${PACKHORSE_WITH_CPU})
endif()
if(PACKHORSE_BUNDLE_DNNL)
  set(gomp "${PACKHORSE_GOMP}")  # in a wheel, the one of an older system
  if(NOT gomp)
    execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libgomp.so.1
                    OUTPUT_VARIABLE gomp OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  get_filename_component(PACKHORSE_GOMP "${gomp}" REALPATH)
  if(NOT EXISTS "${PACKHORSE_GOMP}")
    message(FATAL_ERROR "libgomp.so.1, which oneDNN needs, not found beside ${CMAKE_CXX_COMPILER}")
  endif()
endif()

# CUDA ------------------------------------------------------------------------------------------
set(PACKHORSE_WITH_CUDA FALSE)
if(PACKHORSE_CUDA STREQUAL "AUTO")
  find_program(PACKHORSE_NVCC nvcc)
  # A driver is asked for, because nobody could run what takes minutes to compile without one.
  if(PACKHORSE_NVCC AND EXISTS "/proc/driver/nvidia/version")
    find_in_python_package(folder nvidia-cutlass cutlass/version.h)
    if(folder)
      set(PACKHORSE_WITH_CUDA TRUE)
    else()
      message(WARNING "no CUDA backend: nvcc and a driver are here, but the package nvidia-cutlass "
                      "is not; PACKHORSE_CUDA=ON says how to install it")
    endif()
  endif()
elseif(PACKHORSE_CUDA)
  set(PACKHORSE_WITH_CUDA TRUE)
endif()

if(NOT PACKHORSE_WITH_CPU AND NOT PACKHORSE_WITH_CUDA)
  message(WARNING "libpackhorse is built without any backend")
endif()
message(STATUS "Backends: CPU ${PACKHORSE_WITH_CPU}, CUDA ${PACKHORSE_WITH_CUDA}")
