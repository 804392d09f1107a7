# What cuda.cmake asks of the machine besides the toolkit: which GPUs it has, where Python wheels put NVIDIA's libraries.
# Pure functions; tests/gpu/check_search.cmake tries them.

# trireme_device_architectures(OUT NVCC SECONDS): compute capabilities of the GPUs that nvidia-smi sees and nvcc compiles
# for, once each: "80;90". Empty where there is no GPU, no driver that answers within SECONDS, or a GPU that nvcc does
# not know: then code for many must do.
function(trireme_device_architectures out nvcc seconds)
  set(${out} "" PARENT_SCOPE)
  find_program(smi nvidia-smi NO_CACHE)
  if(NOT smi)
    return()
  endif()
  execute_process(COMMAND ${smi} --query-gpu=compute_cap --format=csv,noheader TIMEOUT ${seconds}
    OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE rc)
  execute_process(COMMAND ${nvcc} --list-gpu-arch TIMEOUT ${seconds} OUTPUT_VARIABLE known ERROR_QUIET)
  if(NOT rc EQUAL 0)
    return()
  endif()
  string(REGEX REPLACE "[\r\n]+" ";" lines "${answer}")
  set(found)
  foreach(line IN LISTS lines)
    string(STRIP "${line}" line)
    if(line STREQUAL "")
      continue()
    endif()
    string(REPLACE "." "" architecture "${line}")
    if(NOT line MATCHES "^[0-9]+\\.[0-9]$" OR NOT "${known}" MATCHES "compute_${architecture}[\r\n]")
      return()
    endif()
    list(APPEND found ${architecture})
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# trireme_common_architectures(OUT VERSION): for a machine without a GPU, what a toolkit of that version compiles for:
# code for common data centre GPUs (it runs on later ones of the same major number too), PTX for what lies between and
# after. The older the first PTX, the more GPUs the driver can compile it for.
function(trireme_common_architectures out version)
  set(first 70-virtual)
  if(version VERSION_GREATER_EQUAL 13.0)
    set(first 75-virtual)
  endif()
  if(version VERSION_GREATER_EQUAL 12.8) # Blackwell: B200 is 10.0, B300 10.3, RTX PRO 6000 12.0
    set(${out} ${first} 80-real 90-real 100 120 PARENT_SCOPE)
  else()
    set(${out} ${first} 80-real 90 PARENT_SCOPE)
  endif()
endfunction()

# trireme_wheel_folders(OUT NVIDIA... ): the folders with include/ and lib/ below site-packages/nvidia folders: cudnn, nccl,
# cublas and the like, and cu12 or cu13, which newer wheels share.
function(trireme_wheel_folders out)
  set(found)
  foreach(nvidia IN LISTS ARGN)
    file(GLOB folders LIST_DIRECTORIES YES ${nvidia}/*)
    foreach(folder IN LISTS folders)
      if(IS_DIRECTORY ${folder}/lib OR IS_DIRECTORY ${folder}/include)
        list(APPEND found ${folder})
      endif()
    endforeach()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# trireme_site_packages(OUT): the site-packages/nvidia folders of the Python on PATH.
function(trireme_site_packages out)
  set(${out} "" PARENT_SCOPE)
  find_program(python NAMES python3 python NO_CACHE)
  if(python)
    execute_process(COMMAND ${python} -c
      "import glob, site, sysconfig\nfor p in dict.fromkeys([sysconfig.get_path('purelib'), *site.getsitepackages(), site.getusersitepackages()]):\n    print(*glob.glob(p + '/nvidia'), sep='', end=';')"
      TIMEOUT 20 OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE rc)
    if(rc EQUAL 0)
      list(FILTER answer EXCLUDE REGEX "^$")
      set(${out} "${answer}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# trireme_gpu_library(VARIABLE NAME MAJORS FOLDER...): libNAME.so in the toolkit's folder or in one of the loader's; else, as
# wheels have it, libNAME.so.MAJOR in one of FOLDER..., the first of MAJORS that is there.
function(trireme_gpu_library variable name majors)
  list(TRANSFORM majors PREPEND lib${name}.so. OUTPUT_VARIABLE versions)
  find_library(${variable} NAMES ${name} lib${name}.so HINTS ${CUDAToolkit_LIBRARY_DIR})
  find_library(${variable} NAMES ${versions} HINTS ${CUDAToolkit_LIBRARY_DIR} ${ARGN} PATH_SUFFIXES lib)
endfunction()

# trireme_gpu_header(VARIABLE HEADER LIBRARY FOLDER...): the header of the same package as the library file: beside it, in the
# toolkit, or in one of FOLDER....
function(trireme_gpu_header variable header library)
  get_filename_component(lib "${library}" DIRECTORY)
  find_path(${variable} ${header} HINTS ${lib}/../include ${CUDAToolkit_INCLUDE_DIRS} ${ARGN} PATH_SUFFIXES include)
endfunction()

# trireme_wheel_toolkit(FOLDER...): sets what find_package(CUDAToolkit) lacks where all of the toolkit is a wheel: nvcc's
# place, and libcudart by its whole name.
function(trireme_wheel_toolkit)
  find_program(nvcc nvcc NO_CACHE HINTS ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} PATHS ${ARGN} PATH_SUFFIXES bin)
  if(NOT nvcc)
    return()
  endif()
  get_filename_component(bin ${nvcc} DIRECTORY)
  get_filename_component(root ${bin} DIRECTORY)
  find_library(CUDA_CUDART NAMES libcudart.so.13 libcudart.so.12 HINTS ${root} PATHS ${ARGN} PATH_SUFFIXES lib)
  set(CUDAToolkit_ROOT ${root} PARENT_SCOPE)
endfunction()
