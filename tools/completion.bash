# bash completion of tessera(1), from what --help prints

# the backends that are found; with an argument also trace:NAME and faulty:NAME, which wrap one
_tessera_backends() {
	tessera info 2>/dev/null | awk -v wrap="$1" '
		$1 == "backend" && $2 != "trace" && $2 != "faulty" { print $2; if (wrap) print "trace:" $2 "\nfaulty:" $2 }'
}

# Completes cur as a value that --help shows as $1: words to choose from, FILE, DIR, BACKEND.
_tessera_value() {
	local word words=
	for word in ${1//|/ }; do
		case $word in
		FILE) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
		DIR) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
		BACKEND) words+=" $(_tessera_backends wrap)" ;;
		[a-z]*) words+=" $word" ;;
		esac
	done
	mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$words" -- "$cur")
	# for bash a word ends at a colon
	[[ $cur != *:* || $COMP_WORDBREAKS != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${cur%:*}:"}")
}

_tessera() {
	local cur prev words cword command= help value
	_init_completion -n =: 2>/dev/null || {
		words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
		cur=${words[cword]} prev=${words[cword-1]}
		[[ $cur != : ]] || cur=$prev: prev=${words[cword-2]}
		[[ $prev != : ]] || cur=${words[cword-2]}:$cur prev=${words[cword-3]}
	}
	((cword > 1)) && [[ ${words[1]} != help ]] && command=${words[1]}
	help=$(TESSERA_LOG=error tessera $command --help 2>/dev/null)
	value=$(awk -v option="$prev" '$1 == option && /^  -[-a-z]+ [^ ]/ { print $2; exit }' <<<"$help")
	COMPREPLY=()
	if [[ $value ]]; then
		_tessera_value "$value"
	elif [[ ! $command || $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(awk '/^  [-a-z]+ / && $1 != "tessera" { print $1 }' <<<"$help")
			$([[ $command ]] || echo help --help --version)" -- "$cur")
	elif [[ $command == bench ]]; then
		mapfile -t COMPREPLY < <(compgen -W "comm decode prefill batch load" -- "$cur"; compgen -d -- "$cur")
	elif [[ $command == conform ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_tessera_backends)" -- "$cur"; compgen -f -X '!*.so' -- "$cur")
	elif [[ $command == new ]]; then
		mapfile -t COMPREPLY < <(compgen -W "style backend device model" -- "$cur")
	elif [[ $command == launch ]]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
	fi
}
complete -o filenames -F _tessera tessera
