"""An imitation of the Hugging Face Hub, for the real `huggingface_hub` client and for our own downloader.

with Hub(accounts={"hf_reader": "reader"}) as hub:
    hub.add("o/target", {"config.json": "{}", "model.safetensors": Generated(5_000_000)})
    hub.faults("model.safetensors", Cut(1_000_000), broken(503))
    ...  # HF_ENDPOINT=hub.endpoint
    assert hub.sent("model.safetensors") < 1.05 * 5_000_000
    assert not hub.leaks

`Hub` and the contents of files are here, what can go wrong is in `tests.support.hub.faults`; all other modules are
internal. Two HTTP servers run while the block does: the Hub, and the host that large files come from.

What it imitates, and from where that is known:

- The API of models: `/api/models/NAME` with `revision` and `tree`. As `huggingface_hub` reads it (`hf_api.py`);
  tests/hub/weights/test_hub_client.py runs the installed client against it.
- Files: `/NAME/resolve/REVISION/PATH`, small ones from the Hub, large ones by a redirect to a signed address of
  another host, with the headers that `huggingface_hub/file_download.py` reads: X-Repo-Commit, X-Linked-Etag,
  X-Linked-Size, Accept-Ranges.
- Refusals: status, X-Error-Code and the words, recorded from huggingface.co without a token (`_access.py`).
- Rate limits: the `RateLimit` header of huggingface.co, as `huggingface_hub/utils/_http.py` parses it.

It does not imitate uploads, web pages, or Xet storage.
"""

from tests.support.hub._content import Generated, Held, OnDisk, read, sha256_of
from tests.support.hub._repo import Sources
from tests.support.hub._server import Hub

__all__ = ["Generated", "Held", "Hub", "OnDisk", "Sources", "read", "sha256_of"]
