# The library: one archive of all rooms, their public headers, and a package for find_package(Moewright) that has the target
# moewright::moewright. It is the install component "library"; the program is the component "program".
include(CMakePackageConfigHelpers)

# Headers that another program may include, as <moewright/ROOM/FILE.h>, and with them those that they include.
set(MOEWRIGHT_PUBLIC_HEADERS
  train/loop/train_step.h train/loop/trainer.h train/loop/validation.h train/loop/sample.h
  train/convert/hf_convert.h train/verify/verify.h planner/search.h)

set(objects)
foreach(target IN LISTS MOEWRIGHT_ROOM_TARGETS)
  list(APPEND objects $<TARGET_OBJECTS:${target}>)
  if(TARGET ${target}_light)
    list(APPEND objects $<TARGET_OBJECTS:${target}_light>)
  endif()
endforeach()
add_library(moewright_library STATIC ${objects} ${MOEWRIGHT_GPU_OBJECTS})
add_library(moewright::moewright ALIAS moewright_library)
set_target_properties(moewright_library PROPERTIES OUTPUT_NAME moewright EXPORT_NAME moewright LINKER_LANGUAGE CXX)
target_compile_features(moewright_library INTERFACE cxx_std_20)
# What the config file finds again: libraries by their names, first where this build found them.
get_property(libraries GLOBAL PROPERTY MOEWRIGHT_LINKED_LIBRARIES)
set(MOEWRIGHT_LIBRARY_NAMES)
set(MOEWRIGHT_LIBRARY_FOLDERS)
foreach(library IN LISTS libraries)
  cmake_path(GET library STEM name)
  string(REGEX REPLACE "^lib" "" name "${name}")
  cmake_path(GET library PARENT_PATH folder)
  list(APPEND MOEWRIGHT_LIBRARY_NAMES "${name}")
  list(APPEND MOEWRIGHT_LIBRARY_FOLDERS "${folder}")
  target_link_libraries(moewright_library INTERFACE "$<INSTALL_INTERFACE:moewright::${name}>")
endforeach()
list(REMOVE_DUPLICATES MOEWRIGHT_LIBRARY_FOLDERS)
set(MOEWRIGHT_PACKAGES fmt)
target_link_libraries(moewright_library INTERFACE fmt::fmt)
if(OpenMP_CXX_FOUND)
  list(APPEND MOEWRIGHT_PACKAGES "OpenMP COMPONENTS CXX")
  target_link_libraries(moewright_library INTERFACE $<LINK_ONLY:OpenMP::OpenMP_CXX>)
endif()
if(MOEWRIGHT_CUDA)
  list(APPEND MOEWRIGHT_PACKAGES CUDAToolkit)
  target_link_libraries(moewright_library INTERFACE $<LINK_ONLY:CUDA::cudart> $<LINK_ONLY:CUDA::cublasLt>)
endif()
list(TRANSFORM MOEWRIGHT_PACKAGES REPLACE "(.+)" "find_dependency(\\1)")
list(JOIN MOEWRIGHT_PACKAGES "\n" MOEWRIGHT_PACKAGES)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/Moewright")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/MoewrightConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/MoewrightConfig.cmake" INSTALL_DESTINATION "${package}"
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/MoewrightConfigVersion.cmake" COMPATIBILITY SameMinorVersion)

install(TARGETS moewright_library EXPORT MoewrightTargets COMPONENT library
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT MoewrightTargets NAMESPACE moewright:: DESTINATION "${package}" COMPONENT library)
install(FILES "${PROJECT_BINARY_DIR}/MoewrightConfig.cmake" "${PROJECT_BINARY_DIR}/MoewrightConfigVersion.cmake"
  DESTINATION "${package}" COMPONENT library)
install(CODE "
  set(source \"${PROJECT_SOURCE_DIR}/src\")
  set(target \"${PROJECT_BINARY_DIR}/include/moewright\")
  set(headers \"${MOEWRIGHT_PUBLIC_HEADERS}\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/CopyHeaders.cmake\")" COMPONENT library)
install(DIRECTORY "${PROJECT_BINARY_DIR}/include/moewright" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT library)
