# cmake --preset aarch64: for 64-bit Arm, from another Debian or Ubuntu. What it needs beside launch/setup's packages:
#     dpkg --add-architecture arm64 && apt-get update
#     apt-get install gcc-aarch64-linux-gnu libopenmpi-dev:arm64 libhdf5-dev:arm64 libhwloc-dev:arm64 libyaml-dev:arm64 \
#         libdnnl-dev:arm64 zlib1g-dev:arm64 libpng-dev:arm64 libjpeg-dev:arm64 libprotobuf-c-dev:arm64 libcmocka-dev:arm64
# Some of these take the place of the machine's own; a chroot keeps it as it is. With qemu-user-static, programs and tests
# run here, too.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(triplet aarch64-linux-gnu)
set(CMAKE_C_COMPILER ${triplet}-gcc)
set(CMAKE_CXX_COMPILER ${triplet}-g++)
find_program(qemu NAMES qemu-aarch64-static qemu-aarch64)
if(qemu)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${qemu})
endif()
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/${triplet}/pkgconfig:/usr/share/pkgconfig)
# The wrappers mpicc and h5cc would answer for the machine that builds.
set(MPI_SKIP_COMPILER_WRAPPER TRUE)
set(MPI_C_HEADER_DIR /usr/lib/${triplet}/openmpi/include)
set(MPI_C_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY /usr/lib/${triplet}/openmpi/lib/libmpi.so)
