# bash completion of tessera(1)

# the backends that are found; with an argument also trace:NAME and faulty:NAME, which wrap one
_tessera_backends() {
	tessera info 2>/dev/null | awk -v wrap="$1" '
		$1 == "backend" && $2 != "trace" && $2 != "faulty" { print $2; if (wrap) print "trace:" $2 "\nfaulty:" $2 }'
}

# Completes cur; for bash a word ends at a colon.
_tessera_backend() {
	mapfile -t COMPREPLY < <(compgen -W "auto $(_tessera_backends wrap)" -- "$cur")
	[[ $cur != *:* || $COMP_WORDBREAKS != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${cur%:*}:"}")
}

_tessera() {
	local cur prev words cword command=
	_init_completion -n =: 2>/dev/null || {
		words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
		cur=${words[cword]} prev=${words[cword-1]}
		[[ $cur != : ]] || cur=$prev: prev=${words[cword-2]}
		[[ $prev != : ]] || cur=${words[cword-2]}:$cur prev=${words[cword-3]}
	}
	((cword > 1)) && command=${words[1]}

	case $prev in
	--backend)
		_tessera_backend
		return ;;
	--plan)
		mapfile -t COMPREPLY < <(compgen -W 'auto none tp tp+sp ep hf' -- "$cur"; compgen -f -- "$cur")
		return ;;
	--part)
		mapfile -t COMPREPLY < <(compgen -W 'gaps open wait data barrier several messages groups extras run life
			abort misuse mismatch death timeout' -- "$cur")
		return ;;
	--kind)
		mapfile -t COMPREPLY < <(compgen -W 'barrier broadcast reduce all_reduce gather all_gather scatter
			reduce_scatter all_to_all send_recv' -- "$cur")
		return ;;
	--dtype)
		mapfile -t COMPREPLY < <(compgen -W "f32 bf16 f16 $([[ $command == convert ]] || echo f64 i64 i32 i8 u8)" -- "$cur")
		return ;;
	--op)
		mapfile -t COMPREPLY < <(compgen -W 'sum prod min max band bor bxor' -- "$cur")
		return ;;
	--bind)
		mapfile -t COMPREPLY < <(compgen -W 'auto cpu none' -- "$cur")
		return ;;
	--sum)
		mapfile -t COMPREPLY < <(compgen -W 'exact fast both' -- "$cur")
		return ;;
	--ids-file | --out | --prompt-file | --prompts | --text | --logits | --log-dir | --flight | --svg | --data | --eval-data | --save | --resume | --log | --curve)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return ;;
	--token-dtype)
		mapfile -t COMPREPLY < <(compgen -W 'u16 u32' -- "$cur")
		return ;;
	--optimizer)
		mapfile -t COMPREPLY < <(compgen -W 'adamw sgd' -- "$cur")
		return ;;
	--schedule)
		mapfile -t COMPREPLY < <(compgen -W 'constant cosine' -- "$cur")
		return ;;
	--kv)
		mapfile -t COMPREPLY < <(compgen -W 'auto f32 bf16' -- "$cur")
		return ;;
	--math)
		mapfile -t COMPREPLY < <(compgen -W 'f32 bf16' -- "$cur")
		return ;;
	--weights)
		mapfile -t COMPREPLY < <(compgen -W 'file q8 bf12' -- "$cur")
		return ;;
	-n | --window | --max-shard-size | --mesh | --along | --threads | --device | --batch | --kv-memory | --plan-override | --prompt | --ids | --prefill-chunk | \
	--micro-batches | --aux-loss | --recompute | --max-tokens | --temperature | \
	--top-k | --top-p | --min-p | --repetition-penalty | --seed | --tokens | --positions | --timeout | --max-restarts | \
	--bucket | --sequence | --eval-every | --steps | --lr | --min-lr | --warmup | --betas | --eps | \
	--momentum | --weight-decay | --clip | --dropout | --save-every | --keep | \
	--ranks | --start | -b | -e | -f | --root | --seconds | --samples)
		return ;;
	esac

	local plan='-n --mesh --plan --plan-override --ignore-unexpected' options=
	case $command in
	'') options='bench conform convert explain generate grad info launch perplexity train help --help --version' ;;
	generate) options="$plan --backend --threads --device --prompt --prompt-file --ids --prompts --prefill-chunk --batch
		--positions --kv --math --weights --kv-memory --max-tokens
		--ignore-eos --temperature --top-k --top-p --min-p --repetition-penalty --seed
		--check --json --stats --digest --logits --flight --help" ;;
	train) options="$plan --backend --threads --device --max-restarts --bucket --recompute --data --sequence --separate --token-dtype
		--eval-data --eval-every --steps --batch --micro-batches --seed --optimizer --lr --min-lr --warmup --schedule --betas --eps
		--momentum --weight-decay --clip --aux-loss --dropout --save --save-every --keep --resume --log --curve --check --digest --flight --help" ;;
	explain)
		options="$plan --tokens --positions --device --kv --weights --program --json --svg --train --batch --sequence --optimizer --recompute --help"
		;;
	grad) options="$plan --ids-file --out --backend --threads --device --micro-batches --aux-loss --recompute --check --help" ;;
	bench) options="$plan --backend --threads --device --positions --kv --math --weights --kv-memory --prefill-chunk --context --tokens --batch --rounds
		--breakdown --along -b -e -f --kind --dtype --op --root --sum --in-place --own --limit --seconds --samples
		--no-check --json --svg --help" ;;
	convert) options='-n --dtype --max-shard-size --help' ;;
	conform) options='--ranks --quick --part --tap --start --device --help' ;;
	perplexity) options="$plan --backend --threads --device --positions --kv --math --weights --kv-memory --text --window --json --help" ;;
	info) options='--options --json --help' ;;
	launch) options='-n --backend --bind --timeout --max-restarts --log-dir --flight --help' ;;
	esac
	if [[ ! $command || $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
	elif [[ $command == bench ]]; then
		mapfile -t COMPREPLY < <(compgen -W "comm decode prefill batch load" -- "$cur"; compgen -d -- "$cur")
	elif [[ $command == conform ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_tessera_backends)" -- "$cur"; compgen -f -X '!*.so' -- "$cur")
	elif [[ $command == launch ]]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
	fi
}
complete -o filenames -F _tessera tessera
