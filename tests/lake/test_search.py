"""Old messages are found in a lake: by each filter, newest first, page by page, in time, despite broken files."""

from __future__ import annotations

import builtins
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.lake.data_files import DataFile, LakeEngineMissing, LakeError, data_file, engine_root, glob_files
from sqlqueue_app.lake.search import Cursor, FileProblem, SearchQuery, read_message, search
from tests.support.lakes import START, files_of, write

LONG = 60.0


def message(number: int, **more: Any) -> dict[str, Any]:
    return {"at": START + timedelta(minutes=number), "message_id": f"id {number}", **more}


def found(lake: Path, **query: Any) -> list[str]:
    results = search(str(lake), files_of(lake), SearchQuery(**query, bodies=True), seconds=LONG)
    assert not results.is_partial
    assert not results.problems
    return [each.message_id for each in results.messages]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    write(
        tmp_path,
        [
            message(1, conversation_id="c 1", message_type="Shop.Order", endpoint="Sales", body=b'{"note": "Zo\xc3\xab 100%"}'),
            message(2, conversation_id="c 1", message_type="Shop.Bill", endpoint="Billing", body=b"\xff\xfe no text 100 percent"),
            message(3, conversation_id="c 2", message_type="Shop_Order", endpoint="Sales", headers='{"Note": "Zo\\u00eb it\'s"}'),
            message(9, conversation_id="c 3", body=None),
        ],
    )
    failures = [message(4, conversation_id="c 1", exception_type="ValueError", exception_message="no", row_version=7)]
    write(tmp_path, failures, table=FAILURES.name, queue="ops/error 1")
    return tmp_path


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, [9, 4, 3, 2, 1]),
        ({"conversation": "c 1"}, [4, 2, 1]),
        ({"conversation": "c 1", "tables": ("failures",)}, [4]),
        ({"message_id": "id 3"}, [3]),
        ({"message_id": "' OR 1=1 --"}, []),
        ({"message_type": "Shop.Order"}, [1]),
        ({"message_type": "Shop_*"}, [3]),
        ({"message_type": "*Order"}, [3, 1]),
        ({"message_type": "%"}, []),
        ({"endpoint": "Sales"}, [3, 1]),
        ({"endpoint": "Sales", "message_type": "*.Order"}, [1]),
        ({"text": "zoë"}, [3, 1]),
        ({"text": "100%"}, [1]),
        ({"text": "IT'S"}, [3]),
        ({"text": "no text"}, []),
        ({"text": "(?"}, []),
        ({"since": START + timedelta(minutes=2), "until": START + timedelta(minutes=4)}, [3, 2]),
        ({"since": START + timedelta(days=2)}, []),
        ({"until": START - timedelta(days=2)}, []),
    ],
)
def test_filters_find_the_matching_messages(lake: Path, query: dict[str, Any], numbers: list[int]) -> None:
    assert found(lake, **query) == [f"id {number}" for number in numbers]


@pytest.mark.parametrize("text", ["it's", "1+1", "a<b>", "R&D", 'say "hi"', "a`b"])
def test_text_is_found_as_dotnet_escapes_it(tmp_path: Path, text: str) -> None:
    escaped = "".join(f"\\u{ord(each):04X}" if each in "\"&'+<>`" else each for each in text)
    note = f'{{"Note":"{escaped}"}}'
    write(tmp_path, [message(1, headers=note), message(2, body=note.encode()), message(3)])
    assert found(tmp_path, text=text) == ["id 2", "id 1"]


def test_bodies_are_searched_only_on_request(lake: Path) -> None:
    for text, numbers in (("zoë", [3]), ("100%", [])):
        results = search(str(lake), files_of(lake), SearchQuery(text=text), seconds=LONG)
        assert [each.message_id for each in results.messages] == [f"id {number}" for number in numbers]


def test_result_describes_the_message(lake: Path) -> None:
    results = search(str(lake), files_of(lake), SearchQuery(tables=("failures",), headers=True), seconds=LONG)
    (each,) = results.messages
    assert (each.table, each.queue, each.row_version, each.counted_at) == (
        "failures",
        "ops/error 1",
        7,
        START + timedelta(minutes=4),
    )
    assert (each.exception_type, each.exception_message, each.headers) == ("ValueError", "no", "{}")
    assert (results.count, results.files, results.next) == (1, 1, None)


def test_pages_have_no_gaps_within_one_instant(tmp_path: Path) -> None:
    for queue in ("audit", "audit 2"):
        write(
            tmp_path,
            [{"at": START - timedelta(days=number // 3), "message_id": f"{queue} {number}"} for number in range(9)],
            queue=queue,
        )
    whole = found(tmp_path, size=100)
    assert len(set(whole)) == 18
    parts = []
    cursor = None
    while True:
        results = search(str(tmp_path), files_of(tmp_path), SearchQuery(size=4, after=cursor), seconds=LONG)
        assert results.count == (None if cursor else 18)
        parts += [each.message_id for each in results.messages]
        if results.next is None:
            break
        cursor = Cursor.read(str(results.next))
        assert cursor == results.next
    assert parts == whole


def test_years_without_messages_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, [{"at": START - timedelta(days=days), "message_id": f"{days}", "body": b"text"} for days in (0, 400, 4_000)])
    assert found(tmp_path, text="TEXT") == found(tmp_path) == ["0", "400", "4000"]


@pytest.mark.parametrize(
    "text", ["", "1.2", "x.1.q", f"{10**17}.{10**18}9.q", "9" * 18 + ".1.q", "1.9999999999999999999.q", "1.-1.q"]
)
def test_invalid_cursor_is_rejected(text: str) -> None:
    assert Cursor.read(text) is None


# --- time limit -----------------------------------------------------------------------------------------------------------------


def test_timed_out_search_reports_its_progress(tmp_path: Path) -> None:
    write(tmp_path, [{"at": START - timedelta(days=days), "message_id": f"{days}", "body": b"text"} for days in range(30)])
    readings = itertools.count(0.0, 0.1)
    results = search(
        str(tmp_path), files_of(tmp_path), SearchQuery(text="text", bodies=True), seconds=3.3, clock=lambda: float(next(readings))
    )
    assert results.is_partial
    assert 0 < len(results.messages) < 30
    assert results.searched_from is not None
    assert results.count is None
    rest = search(str(tmp_path), files_of(tmp_path), SearchQuery(text="text", bodies=True, after=results.next), seconds=LONG)
    assert [each.message_id for each in results.messages + rest.messages] == [str(days) for days in range(30)]


def test_search_without_time_is_partial(lake: Path) -> None:
    results = search(str(lake), files_of(lake), SearchQuery(), seconds=0)
    assert (results.is_partial, results.messages, results.next) == (True, [], None)


# --- files ------------------------------------------------------------------------------------------------------------------------


def test_unreadable_files_are_reported_and_the_others_searched(lake: Path) -> None:
    broken = lake / "messages" / "queue=audit" / "day=2026-11-20" / "broken-0.parquet"
    broken.write_bytes(b"PAR1 this is none PAR1")
    other = lake / "messages" / "queue=audit" / "day=2026-11-20" / "other-0.parquet"
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"something": [1]}), other)
    gone = data_file("messages/queue=audit/day=2026-11-20/gone-0.parquet")
    assert gone is not None
    for query in (SearchQuery(), SearchQuery(text="{", bodies=True), SearchQuery(conversation="c 1")):
        results = search(str(lake), [gone, *files_of(lake)], query, seconds=LONG)
        assert [each.partition(":")[0].rpartition("/")[2] for each in sorted(results.problems)] == [
            "broken-0.parquet", "gone-0.parquet", "other-0.parquet",
        ]  # fmt: skip
        assert "id 1" in [each.message_id for each in results.messages]


def test_file_out_of_reach_is_reported(lake: Path) -> None:
    # refused by the operating system, like a folder without the right to enter it
    far = data_file(f"messages/queue=audit/day=2026-11-20/{'x' * 300}-0.parquet")
    assert far is not None
    results = search(str(lake), [far, *files_of(lake)], SearchQuery(), seconds=LONG)
    assert [each.rpartition(": ")[2] for each in results.problems] == ["File name too long"]
    assert "id 1" in [each.message_id for each in results.messages]


def test_one_message_is_read_by_row_version(lake: Path) -> None:
    files = [each for each in files_of(lake) if each.table == "messages"]
    one = read_message(str(lake), files, 1, with_body=True)
    assert one is not None
    assert (one.message_id, one.headers, one.body) == ("id 1", "{}", b'{"note": "Zo\xc3\xab 100%"}')
    without = read_message(str(lake), files, 1, with_body=False)
    assert without is not None
    assert without.body is None
    assert read_message(str(lake), files, 99, with_body=True) is None
    assert read_message(str(lake), [], 1, with_body=True) is None
    with pytest.raises(FileProblem, match=r"gone-0\.parquet"):
        read_message(
            str(lake),
            [DataFile("messages/queue=a/day=2026-11-20/gone-0.parquet", "messages", "a", START.date())],
            1,
            with_body=True,
        )


def test_search_of_many_files_does_not_compare_each_with_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = itertools.count()
    monkeypatch.setattr(DataFile, "__eq__", lambda one, other: next(compared) < 0 or one is other)
    places = (f"messages/queue=audit/day=2026-11-20/{number}-0.parquet" for number in range(300))
    files = [DataFile(each, "messages", "audit", START.date()) for each in places]
    results = search(str(tmp_path), files, SearchQuery(), seconds=LONG)
    assert len(results.problems) == 300
    assert next(compared) < 300


def test_lake_in_the_home_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "lake", [message(1)])
    assert [each.path for each in glob_files("~/lake")] == [each.path for each in files_of(tmp_path / "lake")]
    (only,) = search("~/lake", list(glob_files("~/lake")), SearchQuery(), seconds=LONG).messages
    assert only.message_id == "id 1"


def test_folder_of_the_lake_may_be_named_like_a_queue(tmp_path: Path) -> None:
    lake = tmp_path / "queue=other" / "lake"
    write(lake, [message(1)])
    (only,) = search(str(lake), files_of(lake), SearchQuery(), seconds=LONG).messages
    assert only.queue == "audit"


def test_files_of_a_directory_are_listed(lake: Path) -> None:
    (lake / "_inflight" / "queue=x" / "day=2026-11-20").mkdir(parents=True)
    assert {(each.table, each.queue, each.day) for each in files_of(lake)} == {
        ("messages", "audit", START.date()), ("failures", "ops/error 1", START.date()),
    }  # fmt: skip
    assert data_file("messages/queue=audit/day=2026-99-20/x.parquet") is None
    assert data_file("minutes/queue=audit/day=2026-11-20/x.parquet") is None
    assert engine_root(lake.as_uri()) == str(lake)


def test_unsupported_store_is_rejected() -> None:
    assert engine_root("s3a://bucket/lake/") == "s3://bucket/lake"
    with pytest.raises(LakeError, match="hdfs"):
        engine_root("hdfs://cluster/lake")
    with pytest.raises(LakeError, match="manifest"):
        list(glob_files("s3://bucket/lake"))


# --- the engine -------------------------------------------------------------------------------------------------------------------


def test_missing_engine_names_the_extra_to_install(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return imported(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LakeEngineMissing, match=r"pip install 'django-sqlqueue\[spark\]'"):
        search(str(lake), files_of(lake), SearchQuery(), seconds=LONG)


def test_concurrent_searches_leave_no_threads(lake: Path) -> None:
    before = threading.active_count()
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _number: found(lake, text="zoë"), range(24)))
    assert results == [["id 3", "id 1"]] * 24
    assert threading.active_count() == before
