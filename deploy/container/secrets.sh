#!/bin/sh
# Writes .env in this folder: env.example with new random values for empty secrets.
set -eu
cd "$(dirname "$0")"
[ ! -e .env ] || { echo "secrets.sh: .env exists already and was not changed." >&2; exit 1; }
umask 077
while IFS= read -r line; do
  case $line in
    *_PASSWORD=) line="$line$(openssl rand -hex 24)" ;;
    SECRETS_KEY=) line="${line}v1:$(openssl rand -base64 32)" ;;
  esac
  echo "$line"
done < env.example > .env.new
mv .env.new .env
