export DFLASH_API_KEY="$(__KEY_COMMAND__)"
export OPENAI_API_BASE=__BASE_URL__
export OPENAI_API_KEY="$DFLASH_API_KEY"
aider --model openai/__MODEL__ --model-metadata-file <(printf %s __AIDER_MODEL__) "$@"
