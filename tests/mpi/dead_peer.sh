#!/bin/sh
# dead_peer.sh MPIEXEC PROGRAM [MODES [RANKS [SECONDS]]]: a rank is killed in the middle of a step; the job must end by
# itself, and soon, with a failure. Once with mpirun's own clean-up (which may be faster than the ranks), and once with
# that switched off (where mpirun itself then ends with 0), so that only the ranks can end it.
set -u
dir=$(mktemp -d) && cd "$dir" && trap 'rm -rf "$dir"' EXIT || exit 1
mpiexec=$1 program=$2 modes=${3:-shared mpi busy group group-mpi} limit=${5:-12} bad=0
for ranks in ${4:-2 3}; do
    for mode in $modes; do
        for own in "" "--enable-recovery"; do
            start=$(date +%s)
            out=$(timeout $((limit + 18)) "$mpiexec" --oversubscribe $own -np $ranks "$program" die $mode 2>&1)
            status=$?
            took=$(($(date +%s) - start))
            verdict=ok
            [ $took -gt $limit ] && verdict="did not end"
            [ $status -eq 0 ] && [ -z "$own" ] && verdict="ended as if all were well"
            echo "$out" | grep -q "failed: rank $((ranks - 1)) (.* died" || [ -z "$own" ] ||
                verdict="survivors did not name the dead rank"
            echo "$ranks ranks, $mode, mpirun $own: status $status: $verdict"
            [ "$verdict" = ok ] || { bad=1; echo "$out"; }
        done
    done
done
exit $bad
