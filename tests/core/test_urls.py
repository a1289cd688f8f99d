"""URLs as they are shown and stored."""

import pytest

from lambert.core.errors import UsageError
from lambert.core.urls import account, check_url, public, public_word, without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://host/a?b=1", "https://host/a?b=1"),
        ("https://me:pass@host/a", "https://host/a"),
        ("https://token@host/a", "https://host/a"),
        ("https://host/@me/a", "https://host/@me/a"),
        ("https://host:8080/@me", "https://host:8080/@me"),
        ("https://me:a0:/@host/a", "https://host/a"),
        ("https://[::1]:80/@me", "https://[::1]:80/@me"),
        ("s3://KEY:se/cr+et@bucket/x", "s3://bucket/x"),
        ("s3://KEY:12/34@bucket/x", "s3://bucket/x"),
        ("https://me:pa/ss@host/a?mail=a@b", "https://host/a?mail=a%40b"),
        ("https://me:p@ss@host/a", "https://host/a"),
        ("https:/me:pass@host/a", "https:/host/a"),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("abfs://c:secret@account/a", "abfs://account/a"),
        ("https://host/a?X-Amz-Signature=1&X-Amz-Credential=2&v=3", "https://host/a?v=3"),
        ("https://host/a?sv=1&sig=2&token=3&api_key=4#access_token=5", "https://host/a?sv=1"),
        ("hdfs://nn:8020/user/x@2024/part.txt", "hdfs://nn:8020/user/x@2024/part.txt"),
        ("sftp://host:22/a@b/c", "sftp://host:22/a@b/c"),
        ("s3://arn:aws:s3:eu:1:accesspoint/ap/key@v1", "s3://arn:aws:s3:eu:1:accesspoint/ap/key@v1"),
        ("az://container@account/p", "az://container@account/p"),
        ("postgresql://u:pa'ss@h/db", "postgresql://h/db"),
        ("https://[::1/a", "https://[::1/a"),
        ("a/b:c@d", "a/b:c@d"),
    ],
)
def test_accounts_and_signatures_are_left_out(url: str, shown: str) -> None:
    assert public(url) == shown


def test_a_message_has_no_secret_of_a_url() -> None:
    url = "s3://KEYID:sec%2Fret@bucket/x?X-Amz-Signature=abcdef"
    said = f"bad bucket 'KEYID:sec%2Fret@bucket', sec/ret, abcdef in {url}"
    found = without_secrets(said, url)
    assert not any(secret in found for secret in ("KEYID", "sec%2Fret", "sec/ret", "abcdef"))
    assert without_secrets("see (https://a:b@host/x), ok") == "see (https://host/x), ok"
    assert account("s3://bucket/x") == ""
    assert public_word("--storage=postgresql://u:pa'ss@h/db") == "--storage=postgresql://h/db"
    assert public_word("--out=runs/x") == "--out=runs/x"


@pytest.mark.parametrize("url", ["http://[me:secret@x/a", "http://h:secret/a"])
def test_what_is_no_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(UsageError, match="is not a URL") as caught:
        check_url(url)
    assert ("secret" in str(caught.value)) == ("@" not in url)
