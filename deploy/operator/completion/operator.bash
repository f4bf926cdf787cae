# Completes "operator" in bash: source <(operator completion bash)
_operator() {
  # Each line has the words of a command, a colon, and the words that may follow.
  local word at='operator' tree='
TREE
'
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ "$tree" == *$'\n'"$at $word:"* ]] && at="$at $word"
  done
  tree="${tree#*$'\n'"$at:"}"
  COMPREPLY=($(compgen -W "${tree%%$'\n'*}" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _operator operator
