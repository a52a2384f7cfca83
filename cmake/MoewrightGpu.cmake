# src/ops/gpu/*.cu: one source for both vendors, through nvcc (CMake's CUDA language) or hipcc (custom commands:
# CMake's HIP language does not accept Debian 12's ROCm layout). The target is mw_gpu.
if(MOEWRIGHT_CUDA AND MOEWRIGHT_HIP)
  message(FATAL_ERROR "MOEWRIGHT_CUDA and MOEWRIGHT_HIP exclude each other")
endif()
file(GLOB MOEWRIGHT_GPU_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/ops/gpu/*.cu")
if(MOEWRIGHT_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)  # Hopper, and PTX for every later or other GPU from Ampere on
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  find_package(CUDAToolkit REQUIRED)
elseif(MOEWRIGHT_HIP)
  find_program(HIPCC hipcc HINTS "$ENV{ROCM_PATH}/bin" /opt/rocm/bin REQUIRED)
endif()
if(MOEWRIGHT_GPU_SOURCES AND (MOEWRIGHT_CUDA OR MOEWRIGHT_HIP))
  set(MOEWRIGHT_HAS_GPU ON)
endif()

# Compiles the GPU sources and, once there are any, adds them to the ops room.
function(moewright_gpu)
  if(NOT MOEWRIGHT_CUDA AND NOT MOEWRIGHT_HIP)
    return()
  endif()
  set(sources ${MOEWRIGHT_GPU_SOURCES})
  set(without_lt ${sources})
  list(FILTER without_lt INCLUDE REGEX "_no_lt\\.cu$")
  if(MOEWRIGHT_CUDA)
    list(REMOVE_ITEM sources ${without_lt})
  else()  # Debian's ROCm has no hipBLASLt
    list(FILTER sources EXCLUDE REGEX "_lt\\.cu$")
    list(APPEND sources ${without_lt})
  endif()
  if(NOT sources)  # no kernel yet: at least the shared element types must compile for the device
    set(sources "${PROJECT_BINARY_DIR}/gpu_headers.cu")
    file(CONFIGURE OUTPUT "${sources}" CONTENT "#include \"base/dtype.h\"\n")
  endif()

  if(MOEWRIGHT_CUDA)
    add_library(mw_gpu OBJECT ${sources})
    target_link_libraries(mw_gpu PRIVATE moewright_flags fmt::fmt CUDA::cudart)
    # constexpr functions of base/ may be called from kernels; nvcc does not follow fmt's compile-time checks.
    target_compile_definitions(mw_gpu PRIVATE FMT_CONSTEVAL= FMT_USE_CONSTEXPR=1)
    target_compile_options(mw_gpu PRIVATE --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra)
    set(objects $<TARGET_OBJECTS:mw_gpu>)
    set(runtime CUDA::cudart CUDA::cublasLt)
  else()
    list(TRANSFORM MOEWRIGHT_HIP_ARCHITECTURES PREPEND --offload-arch= OUTPUT_VARIABLE targets)
    foreach(source IN LISTS sources)
      cmake_path(GET source STEM name)
      set(object "${PROJECT_BINARY_DIR}/hip/${name}.o")
      add_custom_command(OUTPUT "${object}" VERBATIM
        COMMAND "${HIPCC}" ${targets} -std=c++20 -O3 -fPIC -Wall -Wextra -I "${PROJECT_SOURCE_DIR}/src"
                -MD -MF "${object}.d" -x hip -c "${source}" -o "${object}"
        DEPENDS "${source}" DEPFILE "${object}.d" COMMENT "Building HIP object hip/${name}.o")
      list(APPEND objects "${object}")
    endforeach()
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/hip")
    add_custom_target(mw_gpu ALL DEPENDS ${objects})
    find_library(HIP_RUNTIME amdhip64 HINTS "$ENV{ROCM_PATH}/lib" /opt/rocm/lib)
    set(runtime "${HIP_RUNTIME}")
  endif()

  if(MOEWRIGHT_HAS_GPU)
    target_sources(mw_ops PRIVATE ${objects})
    target_link_libraries(mw_ops PUBLIC ${runtime})
    add_dependencies(mw_ops mw_gpu)
  endif()
endfunction()
