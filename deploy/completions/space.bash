# bash completion of space: the candidates come from the program itself.
_space() {
    local IFS=$'\n'
    # shellcheck disable=SC2207
    COMPREPLY=($(space __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    # More is to come behind a sandbox's colon and a directory's slash.
    case ${COMPREPLY[*]} in
    *: | */) compopt -o nospace 2>/dev/null ;;
    esac
}
complete -o default -F _space space
