# Makes of the header's plain comments what Doxygen reads, paragraph by paragraph, on standard output.
#
#   a comment alone, and the one at the top    about the file
#   a line like  /* ---- Errors ---- */        stays as it is
#   a comment over declarations                about them; about all of them when there are several
#   a comment after code on its line           about that code
BEGIN { RS = ""; FS = "\n" }

# document(LINE): the line with its comment, if it starts one, as one of Doxygen's.
function document(line) {
    if (line ~ /^[ \t]*\/\*/)
        sub(/\/\*/, "/**", line)
    else
        sub(/\/\*/, "/**<", line)
    return line
}

function is_section(line) { return line ~ /^\/\* ----/ }

# A function's declaration may need several lines; each begins with ATTREE_API.
{
    declarations = gsub(/\nATTREE_API /, "&")
    alone = $NF ~ /\*\/$/ && $1 ~ /^\/\*/
    for (i = 1; i < NF; i++)
        if ($i ~ /\*\/$/)
            alone = 0
    grouped = 0
    for (i = 1; i <= NF; i++) {
        line = $i
        if (i == 1 && (alone || NR == 1) && !is_section(line))
            sub(/^\/\*/, "/** @file\n *", line)
        else if (!is_section(line))
            line = document(line)
        if ($i ~ /^ATTREE_API / && declarations > 1 && $1 ~ /^\/\*/ && !grouped) {
            line = "/**@{*/ " line
            grouped = 1
        }
        if (i == NF && grouped)
            line = line " /**@}*/"
        print line
    }
    print ""
}
