# src/ops/cpu for more than one CPU. With MOEWRIGHT_CPU_LEVELS its files become the shared library moewright_cpu: one for
# any CPU of the architecture, and one for each level in glibc-hwcaps/<level>/ beside it. At start the dynamic linker of
# glibc 2.33 and later loads the best one for its CPU; `ldd moewright` shows which. As separate libraries, no code of a
# level can be linked into what other CPUs execute.
function(moewright_cpu_levels)
  include(GNUInstallDirs)
  get_target_property(sources mw_ops SOURCES)
  set(operators ${sources})
  list(FILTER operators INCLUDE REGEX "/ops/(cpu/|converted_matmul\\.cpp)")  # which those call
  list(REMOVE_ITEM sources ${operators})
  set_property(TARGET mw_ops PROPERTY SOURCES ${sources})
  set(installed "${CMAKE_INSTALL_LIBDIR}/moewright")
  foreach(level IN ITEMS "" ${MOEWRIGHT_CPU_LEVELS})
    if(level)
      set(target mw_cpu_${level})
      set(folder /glibc-hwcaps/${level})
    else()
      set(target mw_cpu)
      set(folder "")
    endif()
    add_library(${target} SHARED ${operators})
    # Of the rooms below it takes headers alone: the program defines their functions.
    target_link_libraries(${target} PRIVATE moewright_flags ${MOEWRIGHT_ONEDNN_TARGET} ${MOEWRIGHT_OPENMP})
    target_compile_options(${target} PRIVATE -fno-semantic-interposition)
    if(level)
      # GCC keeps to half of AVX-512's width unless told.
      target_compile_options(${target} PRIVATE -march=${level} $<$<CXX_COMPILER_ID:GNU>:-mprefer-vector-width=512>)
    endif()
    moewright_precompile_as(${target} ${target})
    set_target_properties(${target} PROPERTIES OUTPUT_NAME moewright_cpu UNITY_BUILD OFF
      LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/cpu${folder}")
    add_dependencies(mw_ops ${target})
    install(TARGETS ${target} LIBRARY DESTINATION "${installed}${folder}" COMPONENT program)
  endforeach()
  target_link_libraries(mw_ops PUBLIC mw_cpu)
  file(RELATIVE_PATH path "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${installed}")
  set(CMAKE_INSTALL_RPATH "$ORIGIN/${path}" PARENT_SCOPE)
endfunction()
