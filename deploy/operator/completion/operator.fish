# Completes "operator" in fish: operator completion fish | source
function __operator_next
    # Each line has the words of a command, a colon, and the words that may follow.
    set -l tree (string split \n -- '
TREE
')
    set -l at operator
    for word in (commandline -opc)[2..]
        string match -q -- "$at $word:*" $tree; and set at "$at $word"
    end
    string match -- "$at:*" $tree | string replace -- "$at:" '' | string split ' '
end
complete -c operator -f -a '(__operator_next)'
