export DFLASH_API_KEY="$(__KEY_COMMAND__)"
echo "Authorization: Bearer $DFLASH_API_KEY" |
  curl -sS__CACERT__ __BASE_URL__/chat/completions -H @- -H 'Content-Type: application/json' \
  -d __CURL_BODY__
