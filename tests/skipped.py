"""tests/skipped.py [--must] BUILD...: which tests the last ctest in these build folders skipped, and why.

Read from ctest's log: the cases that Python's unittest and cmocka skip, tests that end as skipped, what tests say that they
leave out. --must: ends with status 1 where one of MUST was skipped in part or did not run, though this machine has the
namespaces that it needs (tests/e2e/namespaces.py), and where any test was skipped for want of a program that apt could have
installed here (.ci/run does), or of the package `tokenizers` though TRIREME_PEERS names a Python that is to have it."""
import os
import pathlib
import re
import shutil
import sys

MUST = ("e2e/test_hosts", "e2e/test_disks")
# Of a container with processes of its own: what only the machine's first namespace sees.
MAY = re.compile("a process namespace of its own")
WANTED = re.compile(r"(?:^|: )\S+ is not installed")
PACKAGE = re.compile("no package `tokenizers`")
PYTHON = re.compile(r"\.\.\. skipped ['\"](.*)['\"]$")
SAID = re.compile(r"^(?:.*: )?skipped: (.*)$|^(.* is skipped: .*)$")
CMOCKA = re.compile(r"^\[  SKIPPED \] (\w+)$")


def tests(log):
    """(name, lines of output, whether ctest calls it skipped) of each test in a log."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.M)[1:]:
        output = re.search(r"^Output:\n-+\n(.*?)^<end of output>$", part, re.M | re.S)
        yield part.split("\n", 1)[0], output[1].splitlines() if output else [], "\nTest Skipped." in part


def reasons(lines, whole):
    """Why cases of a test were skipped, each once."""
    found, before, ended = {}, "", False
    for line in lines:
        if line.startswith("[=========="):  # the second time it lists again what was skipped
            ended = "Running" not in line
        python, said, case = PYTHON.search(line), SAID.match(line), CMOCKA.match(line)
        if python:
            name = re.match(r"(?:setUpClass \(\S*?(\w+)\)|(test_\w+))", line if line.startswith(("test_", "setUpClass")) else before)
            found[f"{(name[1] or name[2]) + ': ' if name else ''}{python[1]}"] = None
        elif said:
            found[(said[1] or said[2]).strip()] = None
        elif case and not ended and not SAID.match(before):
            found[case[1]] = None
        if line.strip():
            before = line
    if whole and not found:
        found["as a whole"] = None
    return list(found)


def main(arguments):
    must = "--must" in arguments
    ran, wrong, lacking, count = set(), [], [], 0
    for build in (a for a in arguments if a != "--must"):
        log = pathlib.Path(build, "Testing/Temporary/LastTest.log")
        for name, lines, whole in tests(log.read_text(errors="replace")):
            ran.add(name)
            for why in reasons(lines, whole):
                if count == 0:
                    print("Skipped:")
                count += 1
                print(f"  {name}: {why}")
                if name.removesuffix("/long") in MUST and not MAY.search(why):
                    wrong.append(f"{name} was skipped in part")
                if WANTED.search(why) and shutil.which("apt-get") or PACKAGE.search(why) and os.environ.get("TRIREME_PEERS"):
                    lacking.append(f"{name}: {why}")
    if count == 0:
        print("Skipped: nothing")
    wrong += [f"{name} did not run" for name in MUST if name not in ran]
    if must and lacking:
        sys.exit("tests/skipped.py: this machine could have it: " + "; ".join(lacking))
    if must and wrong:
        sys.path.insert(0, str(pathlib.Path(__file__).parent / "e2e"))
        from namespaces import why_not
        reason = why_not()
        if reason and reason.startswith("no namespaces"): # else it is a program that launch/setup installs
            print(f"These must run where they can; here they cannot: {reason}")
        else:
            sys.exit(f"tests/skipped.py: {reason or 'this machine has the namespaces for them'}, and yet: " + ", ".join(dict.fromkeys(wrong)))


if __name__ == "__main__":
    main(sys.argv[1:])
