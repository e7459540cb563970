export DFLASH_API_KEY="$(dflash-deploy keys show --reveal --dir __DIRECTORY__)"
curl -sS __BASE_URL__/chat/completions -H @- -H 'Content-Type: application/json' \
  -d __CURL_BODY__ \
  <<<"Authorization: Bearer $DFLASH_API_KEY"
