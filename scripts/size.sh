#!/usr/bin/env bash
# Prints the size of the house, room by room: Python lines (docstrings too), modules, and words of the documents.
# The figures are budgets that somebody reads, and nothing that has to pass (docs/DESIGN.md).
#   scripts/size.sh [FOLDER]   a checkout (default: this one)
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

# Counts the lines of the files that standard input names.
lines() { tr '\n' '\0' | xargs -0 -r cat | wc -l; }

row() { printf '%-34s %8s %8s\n' "$@"; }

room() { # label, patterns of git ls-files
    local label="$1" files
    shift
    files="$(git ls-files -- "$@" | grep '\.py$' || true)"
    row "$label" "$(printf '%s' "$files" | lines)" "$(printf '%s' "$files" | grep -c . || true)"
}

row "Python" lines modules
for door in wirings plugin lab; do
    room "$door" "fairseq_residuals/$door"
    for part in $(git ls-files "fairseq_residuals/$door/*/*" | cut -d/ -f3 | sort -u); do
        room "  $part" "fairseq_residuals/$door/$part"
    done
done
room "modern_fairseq" modern_fairseq
room "the rest" '*.py' ':!tests' ':!modern_fairseq' ':!fairseq_residuals/*/*'
room "outside tests" '*.py' ':!tests'
room "tests" tests
printf '\n'
row "Documents" words files
row "docs/ (Markdown)" "$(git ls-files 'docs/*.md' | tr '\n' '\0' | xargs -0 cat | wc -w)" "$(git ls-files 'docs/*.md' | wc -l)"
row "README.md, code aside" "$(sed '/^```/,/^```/d' README.md | wc -w)" 1
row "tracked files" "" "$(git ls-files | wc -l)"
