"""Who may ask: keys, Host, Origin."""

import base64

import pytest

from specdec.errors import SpecError
from specdec.serving.guard import Access
from specdec.serving.running import KEY_VARIABLE, Address

KEY = "k" * 32


@pytest.fixture(scope="module")
def guarded(serve, decoder):
    access = Access((KEY, "another key, also good"), hosts=("models.example",), origins=("https://app.example",))
    with serve({"tiny": decoder}, access) as made, made.client() as client:
        yield client


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def basic(password):
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/", "/v1/models/tiny"])
def test_everything_but_health_needs_the_key(guarded, path):
    for headers in ({}, bearer("wrong"), basic("wrong"), {"Authorization": "Basic %%%"}, {"Authorization": KEY}):
        response = guarded.get(path, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert response.headers["www-authenticate"].startswith("Basic")
    assert guarded.get(path, headers=bearer(KEY)).status_code != 401
    assert guarded.get(path, headers=basic(KEY)).status_code != 401
    assert guarded.get("/health").status_code == 200


def test_an_answer_needs_the_key(guarded):
    asked = {"prompt": "a", "max_tokens": 1}
    assert guarded.post("/v1/completions", json=asked).status_code == 401
    assert guarded.post("/v1/completions", json=asked, headers=bearer("another key, also good")).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:80", "192.168.1.5", "models.example"])
def test_the_server_is_reached_by_its_names_and_by_addresses(guarded, host):
    assert guarded.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "a:b:c", "[::1", "127.0.0.1.evil.example:80"])
def test_a_name_that_is_not_the_servers_is_refused_as_after_rebinding(guarded, host):
    response = guarded.get("/health", headers={"Host": host})
    assert response.status_code == 400


def test_pages_of_other_sites_may_not_ask_unless_they_are_named(guarded):
    asked = {"json": {"prompt": "a", "max_tokens": 1}}
    evil = guarded.post("/v1/completions", **asked, headers={**bearer(KEY), "Origin": "https://evil.example"})
    assert evil.status_code == 403
    assert "access-control-allow-origin" not in evil.headers
    good = guarded.post("/v1/completions", **asked, headers={**bearer(KEY), "Origin": "https://app.example"})
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    own = str(guarded.base_url).rstrip("/")
    assert guarded.post("/v1/completions", **asked, headers={**bearer(KEY), "Origin": own}).status_code == 200


def test_a_preflight_of_a_named_site_needs_no_key(guarded):
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = guarded.options("/v1/completions", headers={"Origin": "https://app.example", **asks})
    assert answer.status_code == 200
    assert guarded.options("/v1/completions", headers={"Origin": "https://evil.example", **asks}).status_code == 403


def test_without_a_named_site_no_cors_header_is_sent(client):
    assert not [name for name in client.get("/health").headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_this_machine_needs_no_key(host, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert Address(host).access().keys == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "models.example"])
def test_another_address_needs_a_key_or_consent(host, monkeypatch, tmp_path):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(SpecError, match="--insecure"):
        Address(host).access()
    assert Address(host, insecure=True).access().keys == ()
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n\n{KEY[::-1]}x\n")
    assert Address(host, key_file=file).access().keys == (KEY, f"{KEY}x")
    monkeypatch.setenv(KEY_VARIABLE, f" {KEY}\n")
    assert Address(host).access().keys == (KEY,)


def test_weak_and_missing_keys_and_open_origins_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(SpecError, match="shorter than 16"):
        Address().access()
    monkeypatch.delenv(KEY_VARIABLE)
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(SpecError, match="holds no key"):
        Address(key_file=tmp_path / "keys").access()
    with pytest.raises(SpecError, match="cannot be read"):
        Address(key_file=tmp_path / "none").access()
    with pytest.raises(SpecError, match="expected the origin"):
        Address(origins=("*",)).access()
