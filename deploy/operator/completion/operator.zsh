# Completes "operator" in zsh, after compinit: source <(operator completion zsh)
_operator() {
  # Each line has the words of a command, a colon, and the words that may follow.
  local word at='operator' tree='
TREE
'
  for word in "${(@)words[2,CURRENT-1]}"; do
    [[ "$tree" == *$'\n'"$at $word:"* ]] && at="$at $word"
  done
  tree="${tree#*$'\n'"$at:"}"
  compadd -- ${(s: :)tree%%$'\n'*}
}
compdef _operator operator
