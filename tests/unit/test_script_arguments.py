"""Which arguments are secrets, and what is shown in their place."""

from __future__ import annotations

import shlex

import pytest

from gpurun.records.script_arguments import masked, masked_text, secrets_digest

FORMS = """
--api-key=S                           | --api-key=***
--api_key S more                      | --api_key *** more
--wandb-api-key S --lr 0.1            | --wandb-api-key *** --lr 0.1
--authToken=S                         | --authToken=***
--db-passwd 'S with blanks=1'         | --db-passwd ***
--client.secret S                     | --client.secret ***
--credentials S                       | --credentials ***
TOKEN=S                               | TOKEN=***
+logger.api_key=S model=big           | +logger.api_key=*** model=big
env.HF_TOKEN=S                        | env.HF_TOKEN=***
--header 'Authorization: Bearer S'    | --header 'Authorization: ***'
--logger '{"api_key": "S", "lr": 1}'  | --logger '{"api_key": "***", "lr": 1}'
--opts secret=S                       | --opts secret=***
https://user:S@host/x                 | https://***@host/x
--url=https://S@host/x?a=1            | --url=https://***@host/x?a=1
postgresql://u:S@S@host:1/db          | postgresql://***@host:1/db
https://host/x?a=1&token=S            | https://host/x?a=1&token=***
--auth --verbose                      | --auth --verbose
"""
PLAIN = (
    "--max-tokens 512 --tokenizer bert --num-keys=3 --token-dim 8 --key-file /k --author me",
    "--lr @tune:0.1,0.2 https://host/a@b user@host:/path --data s3://bucket/x?a=b a=b=c",
)


@pytest.mark.parametrize("form", FORMS.strip().splitlines())
def test_a_secret_is_masked_in_every_form(form: str) -> None:
    typed, _, shown = (part.strip() for part in form.partition("|"))
    assert masked(shlex.split(typed)) == tuple(shlex.split(shown))
    assert (secrets_digest(shlex.split(typed)) is None) is (typed == shown)


@pytest.mark.parametrize("words", PLAIN)
def test_other_words_stay_as_they_are(words: str) -> None:
    assert masked(words.split()) == tuple(words.split())
    assert secrets_digest(words.split()) is None


def test_another_secret_has_another_digest() -> None:
    assert secrets_digest(["--token", "a"]) != secrets_digest(["--token", "b"])
    assert secrets_digest(["--token", "a", "--lr", "1"]) == secrets_digest(["--token", "a"])


def test_a_message_that_quotes_arguments_is_masked() -> None:
    text = "train.py: error: unrecognized arguments: --api-key=S --token S; missing key: 'lr'"
    assert masked_text(text) == text.replace("=S", "=***").replace("token S;", "token ***")
