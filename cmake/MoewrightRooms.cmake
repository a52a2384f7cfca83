# One folder of src/ is one static library. Optional parts are chosen by file name, never by #ifdef:
#   *_onednn.cpp / *_no_onednn.cpp, *_amx.cpp / *_no_amx.cpp, *_mpi.cpp / *_no_mpi.cpp, *_gpu.cpp / *_no_gpu.cpp,
#   *_nccl.cpp / *_no_nccl.cpp, *_pcre.cpp / *_no_pcre.cpp, *_utf8proc.cpp / *_no_utf8proc.cpp,
#   *_sentencepiece.cpp / *_no_sentencepiece.cpp, *_zstd.cpp / *_no_zstd.cpp, *_zlib.cpp / *_no_zlib.cpp
#                                                                                        with / without the feature
#   *_full.cpp / *_plan_only.cpp                                                         full / plan-only build
set(MOEWRIGHT_ROOM_TARGETS "")

# Sets <result> to the .cpp files of the given folders that this build compiles.
function(moewright_sources result)
  list(TRANSFORM ARGN REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.cpp" OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  foreach(feature ONEDNN AMX MPI GPU NCCL PCRE UTF8PROC SENTENCEPIECE ZSTD ZLIB)
    string(TOLOWER ${feature} name)
    set(without ${sources})
    list(FILTER without INCLUDE REGEX "_no_${name}\\.cpp$")
    if(MOEWRIGHT_HAS_${feature})
      list(REMOVE_ITEM sources ${without})
    else()
      list(FILTER sources EXCLUDE REGEX "_${name}\\.cpp$")
      list(APPEND sources ${without})
    endif()
  endforeach()
  if(MOEWRIGHT_PLAN_ONLY)
    list(FILTER sources EXCLUDE REGEX "_full\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_plan_only\\.cpp$")
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# src/rooms.txt: moewright_<room>_depends and moewright_<room>_folders.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/rooms.txt")
file(STRINGS "${PROJECT_SOURCE_DIR}/src/rooms.txt" lines REGEX "^[a-z]")
foreach(line IN LISTS lines)
  if(line MATCHES "^([a-z]+)/([a-z]+):")
    list(APPEND moewright_${CMAKE_MATCH_1}_folders src/${CMAKE_MATCH_1}/${CMAKE_MATCH_2})
  elseif(line MATCHES "^([a-z]+): *(.*)$")
    set(room ${CMAKE_MATCH_1})
    string(REPLACE " " ";" depends "base ${CMAKE_MATCH_2}")
    list(REMOVE_ITEM depends ${room} "")
    set(moewright_${room}_depends ${depends})
  endif()
endforeach()

# moewright_room(<name> [LINKS targets...] [LIGHT files...] [PCH target])
# The room and its folders, linked with the rooms that it may include. LINKS: what this room alone includes and links, so
# that builds for another MPI or for GPUs compile the others with the same flags, and find them in ccache. LIGHT: files,
# without folder and .cpp, that are compiled in less time, because their speed does not matter. PCH: the target whose
# precompiled headers the others read; by default that of mw_base.
function(moewright_room name)
  cmake_parse_arguments(arg "" "PCH" "LINKS;LIGHT" ${ARGN})
  list(TRANSFORM moewright_${name}_depends PREPEND mw_ OUTPUT_VARIABLE arg_DEPENDS)
  moewright_sources(sources src/${name} ${moewright_${name}_folders})
  string(REPLACE ";" "|" names "${arg_LIGHT}")
  set(light)
  if(names)
    set(light ${sources})
    list(FILTER light INCLUDE REGEX "/(${names})\\.cpp$")
  endif()
  if(light)
    list(REMOVE_ITEM sources ${light})
    add_library(mw_${name}_light OBJECT ${light})
    target_link_libraries(mw_${name}_light PRIVATE moewright_flags moewright_light ${arg_DEPENDS} ${arg_LINKS})
    moewright_precompile_as(mw_${name}_light mw_config_light)
    set(light $<TARGET_OBJECTS:mw_${name}_light>)
  endif()
  add_library(mw_${name} STATIC ${sources} ${light})
  target_link_libraries(mw_${name} PUBLIC moewright_flags ${arg_DEPENDS} PRIVATE ${arg_LINKS})
  if(NOT arg_PCH)
    set(arg_PCH mw_base)
  endif()
  moewright_precompile_as(mw_${name} ${arg_PCH})
  set(MOEWRIGHT_ROOM_TARGETS ${MOEWRIGHT_ROOM_TARGETS} mw_${name} PARENT_SCOPE)
endfunction()
