"""Which arguments are secrets, and what is shown in their place."""

from __future__ import annotations

import shlex
import sys

import pytest

from gpurun.records.script_arguments import is_secret, masked, masked_text, secrets_digest

FORMS = """
--api-key=S                           | --api-key=***
--api_key S more                      | --api_key *** ***
--api-keys S S --lr 0.1 2             | --api-keys *** *** --lr 0.1 2
--password -S --lr 0.1                | --password *** --lr 0.1
--password --S S --lr 0.1             | --password *** *** --lr 0.1
--db-pass S                           | --db-pass ***
--set db.password S --lr 0.1          | --set db.password *** --lr 0.1
--set db.password --lr 0.1            | --set db.password --lr 0.1
--db.pass=S                           | --db.pass=***
--dbpass=S --bypass=1                 | --dbpass=*** --bypass=1
'cfg[token]=S'                        | 'cfg[token]=***'
--wandb-api-key S --lr 0.1            | --wandb-api-key *** --lr 0.1
--authToken=S                         | --authToken=***
--db-passwd 'S with blanks=1'         | --db-passwd ***
--client.secret S                     | --client.secret ***
--credentials S                       | --credentials ***
TOKEN=S                               | TOKEN=***
+logger.api_key=S model=big           | +logger.api_key=*** model=big
env.HF_TOKEN=S                        | env.HF_TOKEN=***
--header 'Authorization: Bearer S'    | --header 'Authorization: ***'
--header 'Authorization: Basic S=='   | --header 'Authorization: ***'
'--header=x-api-key: S'               | '--header=x-api-key: ***'
--cfg '{"token": "S==", "lr": 1}'     | --cfg '{"token": "***", "lr": 1}'
--cfg '{"a": "b=c", "pass": "S\\"S"}'  | --cfg '{"a": "b=c", "pass": "***"}'
'--cfg={"api_keys": ["S", "S"]}'      | '--cfg={"api_keys": ***'
--cfg '{secret: S=, lr: 1}'           | --cfg '{secret: ***'
--logger '{"api_key": "S", "lr": 1}'  | --logger '{"api_key": "***", "lr": 1}'
--opts secret=S                       | --opts secret=***
https://user:S@host/x                 | https://***@host/x
--url=https://S@host/x?a=1            | --url=https://***@host/x?a=1
postgresql://u:S@S@host:1/db          | postgresql://***@host:1/db
postgresql://u:S/S@host:1/db          | postgresql://***@host:1/db
'postgresql://u:S?#% S@host/db'       | postgresql://***@host/db
--store=pg://u:S/@S@host/db?a=1       | --store=pg://***@host/db?a=1
pg://host/db?sslpassword=S&x=1        | pg://host/db?sslpassword=***
--dbpass S --bypass 1                 | --dbpass *** --bypass 1
https://host/x?a=1&token=S            | https://host/x?a=1&token=***
--auth --verbose --lr 0.1             | --auth *** --lr 0.1
"""
PLAIN = (
    "--max-tokens 512 --tokenizer bert --num-keys=3 --token-dim 8 --key-file /k --author me",
    "--sort-key name --image-key jpg --key=k --keys a b --bypass 1 --set model.keys x",
    "--lr @tune:0.1,0.2 https://host/a@b user@host:/path --data s3://bucket/x?a=b a=b=c",
)


@pytest.mark.parametrize("sign", "/?#%@:")
def test_a_raw_sign_in_a_password_shows_nothing_of_it_in_a_text(sign: str) -> None:
    text = masked_text(f"no route to 'pg://me:ab{sign}cd@host/db', see https://host/x and a@b")
    assert text == "no route to 'pg://***@host/db', see https://host/x and a@b"


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


NAMES = """
api-key apiKey api_keys access-key secret_key private-key OPENAI_API_KEY WANDB_KEY ssh-key token
hf_token authToken api-tokens secret secrets client.secret password passwords db.password passwd
pass db-pass db.pass DB_PASS pwd passphrase credential credentials auth use-auth authorization
"""
OTHERS = """
key keys sort-key image-key num-keys key-file max-tokens token-dim tokenizer bypass compass
forward-passes author authors pwd-file secretary
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert is_secret(f"--{name}")


@pytest.mark.parametrize("name", OTHERS.split())
def test_names_that_only_look_like_those_of_secrets(name: str) -> None:
    assert not is_secret(name)


TEXTS = """
train.py: error: unrecognized arguments: --api-key=S --token S; missing key: 'lr' \
| train.py: error: unrecognized arguments: --api-key=*** --token ***; missing key: 'lr'
ValueError: {"token": "S"} | ValueError: {"token": "***"}
"{\\"token\\": \\"S\\", \\"lr\\": 1}" no | "{\\"token\\": \\"***\\", \\"lr\\": 1}" no
sent Authorization: Bearer S | sent Authorization: ***
pip --api-key "S S" -r list | pip --api-key *** -r list
login --api-keys S S -x | login --api-keys *** -x
argument --token: invalid choice: 'S' | argument --token: ***
Namespace(lr=1, db_password='S', url=None) | Namespace(lr=1, db_password='***', url=None)
Command '['login', '--password', 'S']' failed | Command '['login', '--password', ***]' failed
Invalid API key: S | Invalid API key: ***
export PASS=S DB_PASS=S | export PASS=*** DB_PASS=***
no route to 'https://user:S@host/x' | no route to 'https://***@host/x'
backward pass: out of memory | backward pass: out of memory
KeyError: 'token' | KeyError: 'token'
"""


@pytest.mark.parametrize("line", TEXTS.strip().splitlines())
def test_a_message_that_quotes_a_secret_is_masked(line: str) -> None:
    text, _, shown = line.partition(" | ")
    assert masked_text(text) == shown


def test_a_secret_of_the_command_line_is_masked_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--password", "hunter2", "--lr", "0.125"])
    assert masked_text("ValueError: hunter2 at 0.125") == "ValueError: *** at 0.125"
    words = ["--cfg", '{"token": "abc\\\\def="}', "--url=https://me:se-cret@host"]
    assert masked_text("bad 'abc\\\\\\\\def=', se-cret", words) == "bad '***', ***"
