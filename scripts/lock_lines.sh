# Reads requirements.lock; setup.sh and lock.sh source this file.

# The packages that come as source are built by these, in the environment itself: a build of its own environment would
# fetch them without knowing their hashes.
BUILD_TOOLS=(cython numpy pdm-backend setuptools wheel)

# Prints the lines, version and hashes, that a lock file (the first argument) has for the packages that follow.
lock_lines() {
    local lock="$1"
    shift
    awk -v names=" $* " '/^[a-z0-9]/ { split($0, pin, "=="); wanted = index(names, " " pin[1] " ") } wanted && !/^#/' "$lock"
}
