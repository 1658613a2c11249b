# bash completion for wd(1)

_wd_sandboxes() {
    wd ls -q 2>/dev/null
}

_wd_images() {
    wd image ls -q 2>/dev/null
}

_wd() {
    local cur prev words cword
    COMPREPLY=()
    cur=${COMP_WORDS[COMP_CWORD]}
    prev=${COMP_WORDS[COMP_CWORD - 1]}
    words=("${COMP_WORDS[@]}")
    cword=$COMP_CWORD

    local verbs="create exec ls inspect stop standby start rm logs image doctor version help"
    local image_verbs="build ls inspect rm"
    local verb=${words[1]:-} options="--help" arguments="" i

    if ((cword == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$verbs --help --version" -- "$cur")
        return
    fi
    # In the guest's part of an exec there is nothing of ours to offer.
    if [[ $verb == exec ]]; then
        for ((i = 2; i < cword; i++)); do
            [[ ${words[i]} == -- ]] && return
        done
    fi
    case $prev in
        --env-file | --cwd)
            [[ $verb == exec && $prev == --cwd ]] || mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        --image)
            mapfile -t COMPREPLY < <(compgen -W "$(_wd_images)" -- "$cur")
            return
            ;;
        --env)
            mapfile -t COMPREPLY < <(compgen -e -- "$cur")
            return
            ;;
        --cpus | --memory | --disk | --idle-timeout | --name | --label | --user | --timeout)
            return
            ;;
    esac
    case $verb in
        create)
            options+=" --image --cpus --memory --disk --idle-timeout --name --label --env --env-file --json"
            ;;
        exec)
            options+=" --cwd --env --env-file --user --timeout --json"
            arguments=$(_wd_sandboxes)
            ;;
        ls)
            options+=" --all --label --quiet --json"
            ;;
        inspect)
            options+=" --json"
            arguments=$(_wd_sandboxes)
            ;;
        stop)
            options+=" --timeout --json"
            arguments=$(_wd_sandboxes)
            ;;
        start | standby)
            options+=" --json"
            arguments=$(_wd_sandboxes)
            ;;
        rm)
            options+=" --all --label --force --json"
            arguments=$(_wd_sandboxes)
            ;;
        logs)
            options+=" --follow"
            arguments=$(_wd_sandboxes)
            ;;
        image)
            if ((cword == 2)); then
                mapfile -t COMPREPLY < <(compgen -W "$image_verbs --help" -- "$cur")
                return
            fi
            case ${words[2]} in
                build) options+=" --detach --json" arguments=$(_wd_images) ;;
                ls) options+=" --quiet --json" ;;
                inspect) options+=" --json" arguments=$(_wd_images) ;;
                rm) options+=" --json" arguments=$(_wd_images) ;;
            esac
            ;;
        doctor | version)
            options+=" --json"
            ;;
        help)
            options="" arguments=$verbs
            ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -W "$arguments" -- "$cur")
    fi
}

complete -F _wd wd
