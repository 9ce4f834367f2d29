#!/usr/bin/env bash
# What people get wrong most often, and what they are answered: `tests/mistakes.sh URL URL_OF_A_SERVER_WITH_KEYS` asks with curl
# and prints a transcript in Markdown. The servers serve `embed`, `rank` and `nli`; the second one's key is `the-right-key`.
# tests/mistakes.rs starts two, runs this and compares with bench/record/2026-11-30-mistakes.md.
set -uo pipefail
plain=$1 keyed=$2
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"

# Prints what was typed and what came back: the status, the fields that tell something, the body.
ask() {
  local title=$1 shown=""
  shift
  local word
  for word in "$@"; do
    word=${word//"$plain"/http://localhost:8887}
    word=${word//"$keyed"/http://localhost:8887}
    case $word in
      *[!a-zA-Z0-9_./:=@-]*) shown+=" '${word//\'/\'\\\'\'}'" ;;
      *) shown+=" $word" ;;
    esac
  done
  printf '**%s**\n\n    $ curl%s\n' "$title" "$shown"
  curl -sS -i --max-time 20 "$@" 2>&1 | tr -d '\r' |
    grep -viE '^(date|content-type|content-length|x-request-id|server-timing|connection):|^$|^HTTP/1.1 100' | sed 's/^/    /'
  printf '\n\n'
}

echo "## The request"
echo
ask "A POST without a body" -X POST "$plain/infer/embed"
ask "A GET where a POST is needed" "$plain/infer/embed"
ask "A model's name with a letter wrong" "$plain/infer/embedd" -d '{"documents": ["a"]}'
ask "No model in the path" "$plain/infer/" -d '{"documents": ["a"]}'
ask "A route of another server" "$plain/embed" -d '{"inputs": "a"}'
ask "A client whose base URL has /v1 twice" "$plain/v1/v1/embeddings" -d '{"model": "embed", "input": "a"}'
ask "A route of OpenAI's that is not here" "$plain/v1/chat/completions" -d '{"model": "embed", "messages": []}'
ask "A file upload" "$plain/infer/embed" -F 'documents=a'

echo "## The body"
echo
ask "A form" "$plain/infer/embed" -d 'documents=hello'
ask "Quotes of another language" "$plain/infer/embed" -d "{'documents': ['a']}"
ask "What is left of quotes after a Windows prompt" "$plain/infer/embed" -d '{documents:[a]}'
ask "A comma too many" "$plain/infer/embed" -d '{"documents": ["a",]}'
ask "A list without its object" "$plain/infer/embed" -d '["a"]'
ask "Another server's field" "$plain/infer/embed" -d '{"inputs": ["a"]}'
ask "A number among the texts" "$plain/infer/embed" -d '{"documents": ["a", 7]}'
ask "A missing value among the texts" "$plain/infer/embed" -d '{"documents": ["a", null]}'
ask "No texts" "$plain/infer/embed" -d '{"documents": []}'
printf '\xff\xfe{\0}\0' >utf16.json
ask "A file in UTF-16, as PowerShell writes it" "$plain/infer/embed" --data-binary @utf16.json
printf '{"documents": ["caf\xe9"]}' >latin1.json
ask "A file in Latin-1" "$plain/infer/embed" --data-binary @latin1.json
printf '{"documents": ["a"]}' | gzip -n >body.gz
ask "A compressed body" "$plain/infer/embed" -H 'content-encoding: gzip' --data-binary @body.gz

echo "## The models"
echo
ask "A reranker without a query" "$plain/infer/rank" -d '{"documents": ["a", "b"]}'
ask "Premises and hypotheses of different numbers" "$plain/infer/nli" -d '{"premises": ["a", "b"], "hypotheses": ["c"]}'
ask "OpenAI's route without a model" "$plain/v1/embeddings" -d '{"input": "a"}'
ask "OpenAI's model names" "$plain/v1/embeddings" -d '{"model": "text-embedding-3-small", "input": "a"}'
ask "The native field on OpenAI's route" "$plain/v1/embeddings" -d '{"model": "embed", "documents": ["a"]}'
ask "An empty text on OpenAI's route" "$plain/v1/embeddings" -d '{"model": "embed", "input": ""}'
ask "More dimensions than there are" "$plain/v1/embeddings" -d '{"model": "embed", "input": "a", "dimensions": 1536}'
ask "An NLI model on OpenAI's route" "$plain/v1/embeddings" -d '{"model": "nli", "input": "a"}'

echo "## Limits and time"
echo
{ printf '{"documents": ["a"'; printf ',"a"%.0s' $(seq 2100); printf ']}'; } >many.json
ask "More texts than one request may hold" "$plain/infer/embed" --data-binary @many.json
{ printf '{"documents": ["'; head -c 5000000 /dev/zero | tr '\0' a; printf '"]}'; } >large.json
ask "A body beyond the limit" "$plain/infer/embed" --data-binary @large.json
ask "A time limit with a unit" "$plain/infer/embed" -H 'x-request-timeout-ms: 5s' -d '{"documents": ["a"]}'

echo "## Keys"
echo
ask "No key" "$keyed/infer/embed" -d '{"documents": ["a"]}'
ask "A key without its scheme" "$keyed/infer/embed" -H 'authorization: the-right-key' -d '{"documents": ["a"]}'
ask "A wrong key on OpenAI's route" "$keyed/v1/embeddings" -H 'authorization: Bearer sk-wrong' -d '{"model": "embed", "input": "a"}'
