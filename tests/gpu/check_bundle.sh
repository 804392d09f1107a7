#!/usr/bin/env bash
# tests/gpu/check_bundle.sh BUILD SCRATCH: packs a bundle without tests, unpacks it and trains on the CPU at 2 ranks, as on a
# machine with an older glibc: with the bundle's loader, and no library but the bundle's. The machine's own programs go on
# with the machine's glibc. Then the folder is moved, and the machine's glibc taken.
set -euo pipefail
command -v patchelf > /dev/null || { echo "skipped: patchelf is not installed"; exit 77; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$1 scratch=$2
die() { echo "check_bundle: $*" >&2; exit 1; }
rm -rf "$scratch" && mkdir -p "$scratch"
trap 'rm -rf "$scratch"' EXIT
"$here/bundle" "$build" "$scratch/gpu.tar" -
tar -C "$scratch" -xf "$scratch/gpu.tar"

train() { # ENV FOLDER OUT: the loader that its programs were started by
    (
        export TRIREME_GLIBC=$1
        . "$2/env.sh"
        [ "$(command -v trainer)" = "$2/bin/trainer" ] || die "PATH has $(command -v trainer)"
        for program in trainer mpirun; do
            strangers=$("$TRIREME_LOADER" --list "$2/bin/$program" | grep '=> /' | grep -vF "=> $2/" || true)
            [ "$1" = host ] || [ -z "$strangers" ] || die "$program takes from the machine: $strangers"
        done
        # plug-ins find theirs by the program's path
        for plugin in "$2"/lib/openmpi/*.so "$2"/lib/pmix/*.so; do
            strangers=$("$TRIREME_LOADER" --library-path "$2/lib:$2/lib/system" --list "$plugin" | grep -E '=> /|not found' | grep -vF "=> $2/" || true)
            [ "$1" = host ] || [ -z "$strangers" ] || die "$(basename "$plugin") takes from the machine: $strangers"
        done
        bash -c 'python3 -c "print()"' > /dev/null
        mpirun -np 2 trainer "$TR_SOURCE_DIR/configs/digits.yaml" device=cpu output="$3" train.steps=4 --quiet >&2
        echo "$TRIREME_LOADER"
    )
}
first=$scratch/trireme-gpu moved="$scratch/moved elsewhere"
loader=$(train bundle "$first" "$scratch/run1")
[ "${loader#"$first"/lib/}" != "$loader" ] || die "the loader is $loader"
mv "$first" "$moved"
loader=$(train bundle "$moved" "$scratch/run2")
[ "${loader#"$moved"/lib/}" != "$loader" ] || die "the loader is $loader after a move"
loader=$(train host "$moved" "$scratch/run3")
[ "${loader#"$scratch"}" = "$loader" ] || die "the machine's glibc was asked for: $loader"
"$build/bin/trainer" inspect "$scratch/run1/model.h5" "$scratch/run3/model.h5" > "$scratch/differences" || true
grep -q '^ */model/params.*identical' "$scratch/differences" || die "other weights: $(cat "$scratch/differences")"
echo "both glibcs, and moved: trained"
