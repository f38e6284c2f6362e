"""The server behind ``view --follow --web``: it answers its own pages only, and nothing breaks it."""

import pytest

from gagpo.eval.viewer.export import Exporter
from gagpo.eval.viewer.serve import serving
from tests.eval.viewer.conftest import write_groups
from tests.raw_requests import asked, exchanged


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    run = write_groups(folder / "run", iterations=1)
    with serving(Exporter([run], folder / "out", live=True)) as address:
        yield address


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site", "sec_fetch_dest": "script"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_no_method_answers_another_site(address, method, headers):
    for path in ("/", "/data/index.js"):
        status, answer = asked(address, method, path, **headers)
        assert status == 403 and b"viewer" not in answer


def test_its_own_pages_are_answered(address):
    for path in ("/", "/data/index.js", "/core.js"):
        assert asked(address, path=path)[0] == 200
        assert asked(address, path=path, origin=address.rstrip("/"), sec_fetch_site="same-origin")[0] == 200
        assert (
            asked(address, path=path, sec_fetch_site="none", host=f"localhost:{address.rsplit(':')[-1][:-1]}")[0] == 200
        )


@pytest.mark.parametrize("path", ["/", "/data/index.js", "/nowhere"])
def test_every_answer_says_that_no_other_site_may_load_it(address, path):
    _, answer = asked(address, path=path)
    head = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert b"cross-origin-resource-policy: same-origin" in head and b"x-content-type-options: nosniff" in head
    assert any(line.startswith(b"content-security-policy: default-src 'none'; script-src 'self'") for line in head)


@pytest.mark.parametrize("path", ["/%00", "/%ed%a0%80", "/..%2f..%2fetc/passwd", "/" + "a" * 5000, "//evil/%2e%2e"])
def test_a_path_that_no_file_has_is_answered(address, path, capfd):
    assert asked(address, path=path)[0] in (301, 404, 414)
    assert "Traceback" not in capfd.readouterr().err
    assert asked(address)[0] == 200


def test_nonsense_on_the_wire_is_answered_and_says_nothing_in_the_terminal(address, capfd):
    for data in (b"", b"\x16\x03\x01" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"A" * 70_000):
        assert b"200" not in exchanged(address, data)
    assert asked(address, "POST", body=b"x" * 1000)[0] == 501
    assert asked(address)[0] == 200 and capfd.readouterr().err == ""
