# fish completion of space: the candidates come from the program itself.
function __space_candidates
    set -l words (commandline --tokenize --cut-at-cursor --current-process) (commandline --current-token --cut-at-cursor)
    space __complete -- $words[2..-1] 2>/dev/null
end
complete --command space --arguments '(__space_candidates)'
