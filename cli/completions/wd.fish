# fish completion for wd(1)

function __wd_sandboxes
    wd ls -q 2>/dev/null
end

function __wd_images
    wd image ls -q 2>/dev/null
end

# The verb on the line is $argv[1]; for image, its own verb is $argv[2].
function __wd_verb
    set -l words (commandline -opc)
    test (count $words) -gt 1; and test "$words[2]" = $argv[1]; or return 1
    test (count $argv) -lt 2; and return 0
    test (count $words) -gt 2; and test "$words[3]" = $argv[2]
end

function __wd_no_verb
    test (count (commandline -opc)) -eq 1
end

function __wd_no_image_verb
    set -l words (commandline -opc)
    test (count $words) -eq 2; and test "$words[2]" = image
end

complete -c wd -f
complete -c wd -l help -s h -d 'print help'
complete -c wd -n __wd_no_verb -l version -d 'print versions'

complete -c wd -n __wd_no_verb -a create -d 'make a sandbox and print its id'
complete -c wd -n __wd_no_verb -a exec -d 'run a command in a sandbox'
complete -c wd -n __wd_no_verb -a ls -d 'list sandboxes'
complete -c wd -n __wd_no_verb -a inspect -d 'show everything about a sandbox'
complete -c wd -n __wd_no_verb -a stop -d 'stop sandboxes; their disks stay'
complete -c wd -n __wd_no_verb -a standby -d 'park sandboxes; the next call wakes them'
complete -c wd -n __wd_no_verb -a start -d 'start stopped sandboxes on their disks'
complete -c wd -n __wd_no_verb -a rm -d 'remove sandboxes with their disks'
complete -c wd -n __wd_no_verb -a logs -d 'print a sandbox\'s console log'
complete -c wd -n __wd_no_verb -a image -d 'build, list, inspect and remove images'
complete -c wd -n __wd_no_verb -a doctor -d 'check this host and say what to do'
complete -c wd -n __wd_no_verb -a version -d 'print the versions of wd and workdird'
complete -c wd -n __wd_no_verb -a help -d 'print help, also of one verb'

complete -c wd -n '__wd_verb create' -l image -x -a '(__wd_images)' -d 'image to start from'
complete -c wd -n '__wd_verb create' -l cpus -x -d 'virtual CPUs'
complete -c wd -n '__wd_verb create' -l memory -x -d 'guest memory'
complete -c wd -n '__wd_verb create' -l disk -x -d 'size of the root disk'
complete -c wd -n '__wd_verb create' -l idle-timeout -x -d 'to standby after so long without a command'
complete -c wd -n '__wd_verb create' -l name -x -d 'a name to use in place of the id'
complete -c wd -n '__wd_verb create' -l label -x -d 'attach a label'
complete -c wd -n '__wd_verb create' -l env -x -a '(set -nx)' -d 'environment of every command'
complete -c wd -n '__wd_verb create' -l env-file -r -F -d 'read NAME=VALUE lines'
complete -c wd -n '__wd_verb create' -l json -d 'print the report as JSON'

complete -c wd -n '__wd_verb exec' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb exec' -l cwd -x -d 'working directory'
complete -c wd -n '__wd_verb exec' -l env -x -a '(set -nx)' -d 'environment'
complete -c wd -n '__wd_verb exec' -l env-file -r -F -d 'read NAME=VALUE lines'
complete -c wd -n '__wd_verb exec' -l user -x -d 'user in the guest'
complete -c wd -n '__wd_verb exec' -l timeout -x -d 'end the command after this time'
complete -c wd -n '__wd_verb exec' -l json -d 'collect the output and print JSON'

complete -c wd -n '__wd_verb ls' -l all -d 'those of other users too'
complete -c wd -n '__wd_verb ls' -l label -x -d 'only those with this label'
complete -c wd -n '__wd_verb ls' -l quiet -s q -d 'ids only'
complete -c wd -n '__wd_verb ls' -l json -d 'print JSON'

complete -c wd -n '__wd_verb inspect' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb inspect' -l json -d 'print JSON'

complete -c wd -n '__wd_verb stop' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb stop' -l timeout -x -d 'then the guest is killed'
complete -c wd -n '__wd_verb stop' -l json -d 'print JSON'
complete -c wd -n '__wd_verb standby' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb standby' -l json -d 'print JSON'

complete -c wd -n '__wd_verb start' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb start' -l json -d 'print JSON'

complete -c wd -n '__wd_verb rm' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb rm' -l all -d 'all of your own'
complete -c wd -n '__wd_verb rm' -l label -x -d 'those with this label'
complete -c wd -n '__wd_verb rm' -l force -s f -d 'a missing one is no error'
complete -c wd -n '__wd_verb rm' -l json -d 'print JSON'

complete -c wd -n '__wd_verb logs' -a '(__wd_sandboxes)'
complete -c wd -n '__wd_verb logs' -l follow -s f -d 'go on until the sandbox ends'

complete -c wd -n __wd_no_image_verb -a build -d 'build a new version of an image'
complete -c wd -n __wd_no_image_verb -a ls -d 'list images and their versions'
complete -c wd -n __wd_no_image_verb -a inspect -d 'show the latest version of an image'
complete -c wd -n __wd_no_image_verb -a rm -d 'remove an image, or one version of it'
complete -c wd -n '__wd_verb image build' -a '(__wd_images)'
complete -c wd -n '__wd_verb image build' -l detach -d 'leave the job running'
complete -c wd -n '__wd_verb image build' -l json -d 'print JSON'
complete -c wd -n '__wd_verb image ls' -l quiet -s q -d 'names only'
complete -c wd -n '__wd_verb image ls' -l json -d 'print JSON'
complete -c wd -n '__wd_verb image inspect' -a '(__wd_images)'
complete -c wd -n '__wd_verb image inspect' -l json -d 'print JSON'
complete -c wd -n '__wd_verb image rm' -a '(__wd_images)'
complete -c wd -n '__wd_verb image rm' -l json -d 'print JSON'

complete -c wd -n '__wd_verb doctor' -l json -d 'print JSON'
complete -c wd -n '__wd_verb version' -l json -d 'print JSON'
complete -c wd -n '__wd_verb help' -a 'create exec ls inspect stop standby start rm logs image doctor version'
