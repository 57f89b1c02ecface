"""The pytest plugin as a driver's author uses it: in a pytest of its own, with whatever asyncio plugin there is."""

from __future__ import annotations

import tomllib

import pytest

from tests.helpers.author_project import FUNCTIONS, INI, LONGEST, author, run
from tests.tools.tree import ROOT, SOURCES

__all__ = ["author"]
pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(LONGEST + 20)

COROUTINES = """
import asyncio

async def test_a_coroutine_goes_on_while_the_pod_starts(node, api, local_cluster):
    loop, here = asyncio.get_running_loop(), []
    loop.call_soon(here.append, "the loop of the test is free")
    pod, other = await asyncio.gather(node.run_pod.aio(), node.run_pod.aio("other"))
    assert here and node.env(pod)["FPGA"] != node.env(other)["FPGA"]
    async with api.outage():
        pass
    await node.delete_pod.aio()
"""
BY_ANYIO = """
import anyio, pytest

@pytest.mark.anyio
async def test_a_coroutine_in_the_loop_of_asyncio_or_trio(node, api):
    here = []

    async def meanwhile():
        here.append("the loop of the test is free")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meanwhile)
        pod = await node.run_pod.aio()
        assert here and node.env(pod)["FPGA"]
    async with api.outage():
        pass
    with anyio.move_on_after(0.1) as scope:
        await api.wait_event.aio("nothing", "Never", timeout=60)
    assert scope.cancelled_caught
    await node.delete_pod.aio()
"""
MARKED = "import pytest\n" + COROUTINES.replace("async def test", "@pytest.mark.asyncio\nasync def test")


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("mode", "coroutines"),
    [
        (["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"], COROUTINES),
        (["-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=session"], MARKED),
        (["-p", "no:asyncio"], BY_ANYIO),
        (["-p", "no:asyncio"], ""),
    ],
    ids=["auto", "strict", "anyio", "no plugin for coroutines"],
)
def test_the_fixtures_work_whatever_runs_coroutines(author: pytest.Pytester, mode: list[str], coroutines: str) -> None:
    author.makepyfile(test_functions=FUNCTIONS, test_coroutines=coroutines)
    loops = {"": 0, BY_ANYIO: 2}.get(coroutines, 1)
    run(author, *mode).assert_outcomes(passed=1 + loops)


@pytest.mark.full
def test_faults_are_verbs(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import pytest
        from dra_devkit.testing import FaultError, PodError

        FUNCTION = {"address": "0000:19:00.0", "vendor": 0x10EE, "device": 0x5000, "class": 0x120000}

        def test_hardware(node):
            node.plug(FUNCTION)
            assert "fpga-0000-19-00-0" in node.published()
            node.unplug("0000:19:00.0")
            assert "fpga-0000-19-00-0" not in node.published()
            node.health("fpga-0000-17-00-0", message="hot")
            assert node.published()["fpga-0000-17-00-0"].taints
            node.health("fpga-0000-17-00-0", healthy=True)
            node.wait_published(lambda devices: not devices["fpga-0000-17-00-0"].taints)

        def test_machines(node, kubelet):
            node.run_pod()
            uid = node.claim_of("pod")["metadata"]["uid"]
            kubelet.restart()
            node.upgrade()
            assert node.leftovers()["records"] == [uid]
            node.reboot()
            node.delete_pod()
            assert not any(node.leftovers().values())

        def test_containers(node, api):
            node.run_pod("good")
            node.run_pod("bad")
            node.end("good")
            assert api.wait_finished("good")["status"]["phase"] == "Succeeded"
            node.end("bad", exit_code=3)
            with pytest.raises(PodError, match="pod bad failed"):
                api.wait_finished("bad")
            api.wait("both claims to be unprepared", lambda: not any(node.leftovers().values()))

        def test_servers(node, api):
            api.conflict(2)
            api.throttle(2)
            node.run_pod("one")
            api.cut_watch()
            api.delay(0.01)
            api.drop("taints")
            with api.outage(), pytest.raises(Exception, match="503 the API server is down"):
                api.get_all("Pod")
            node.run_pod("two")

        def test_what_cannot_be_done_reports_how_it_could(node, api):
            with pytest.raises(FaultError, match="process=True"):
                node.kill()
            with pytest.raises(FaultError, match="nothing is not a device of fpga.example.com"):
                node.health("nothing")
            with pytest.raises(FaultError, match="no PCI function '0000:99:00.0' on this host, only 0000:17:00.0"):
                node.unplug("0000:99:00.0")
            with pytest.raises(FaultError, match="'tains' is not a field of slices, did you mean 'taints'"):
                api.drop("tains")
            with pytest.raises(FaultError, match="'v1beta9' is not a version of resource.k8s.io"):
                api.serve("v1beta9")
            with pytest.raises(PodError, match="there is no pod ghost"):
                node.allocated("ghost")
            with pytest.raises(ValueError, match="without apiVersion, metadata"):
                api.apply({"kind": "Pod"})
            node.run_pod()
            with pytest.raises(FaultError, match="container other of pod pod was not started on node-1"):
                node.env(api.get("Pod", "pod"), "other")
            assert node.env("pod") == node.env(api.get("Pod", "pod"))
            with pytest.raises(FaultError, match="no node has a pod ghost"):
                node.oci("ghost")
            for fault in (api.conflict, api.throttle, api.delay):
                with pytest.raises(FaultError, match="the value must be finite and at least 0"):
                    fault(-1)

        @pytest.mark.dra(host="this machine")
        def test_real_hardware_is_left_alone(node):
            with pytest.raises(FaultError, match="plug needs a described host"):
                node.plug(FUNCTION)

        @pytest.mark.dra(process=True)
        def test_a_killed_process(node, api):
            node.run_pod()
            uid = node.claim_of("pod")["metadata"]["uid"]
            kept = {"files": [uid], "records": [uid], "held": node.allocated("pod")}
            assert node.leftovers() == kept
            node.kill()
            assert node.leftovers() == kept
            node.apply_pod("late")
            api.wait_event("late", "FailedPrepareDynamicResources")
            node.start()
            api.wait_running("late")
            node.delete_pod()
            node.delete_pod("late")
            assert not any(node.leftovers().values())
        """
    )
    run(author).assert_outcomes(passed=7)


@pytest.mark.full
def test_a_pod_that_will_not_run_is_reported_at_once_with_its_events_each_once(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import pytest
        from dra_devkit.testing import ClaimSpec, PodError, Request

        @pytest.mark.dra(environment={"FPGA_REFUSES": "yes"})
        def test_refused_for_good(node):
            with pytest.raises(PodError, match="will not run: PERMANENT: the bitstream is for another board") as e:
                node.run_pod(timeout=3600, progress_timeout=3600)  # this process does not live as long
            assert "PERMANENT: the bitstream is for another board" in str(e.value)
            reasons = [(event.reason, event.message) for event in e.value.events]
            assert len(reasons) == len(set(reasons))

        def test_no_place(node):
            with pytest.raises(PodError, match="is unschedulable, and nothing has changed for 0.3 s: 0/1 nodes.*\\\\n.*Warning FailedScheduling"):
                node.run_pod("p", ClaimSpec(Request(count=3)), timeout=60, progress_timeout=0.3)

        def test_deleted_meanwhile(node, api):
            node.apply_pod("p", ClaimSpec(Request(count=3)))
            api.delete("Pod", "p")
            with pytest.raises(PodError, match="there is no pod p|pod p is (gone|being deleted)"):
                api.wait_running("p")
        """
    )
    run(author).assert_outcomes(passed=3)


def test_a_failing_test_shows_the_events_of_its_cluster(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        def test_it(node):
            node.run_pod()
            assert False
        """
    )
    result = run(author)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*events of the local cluster*", "Normal Scheduled from default-scheduler: *default/pod*"]
    )


@pytest.mark.full
def test_a_failing_test_shows_each_event_once_with_its_count(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import pytest
        from driver import Fpga

        class Broken(Fpga):
            def prepare(self, claim):
                raise RuntimeError("the card is broken")

        @pytest.mark.dra(driver=Broken)
        def test_it(node):
            node.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": {
                "nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "i"}]}})
            node.api.wait_event("other", "FailedScheduling")
            node.run_pod()
        """
    )
    result = run(author)
    result.assert_outcomes(failed=1)
    shown = [
        line for line in result.outlines if line.startswith(("E ", "Normal ", "Warning "))
    ]  # neither the code nor the log
    for text in ("the card is broken", "Normal Scheduled", "FailedPrepareDynamicResources", "Warning FailedScheduling"):
        assert len([line for line in shown if text in line]) == 1, shown
    result.stdout.re_match_lines(
        [
            r".*PodError: pod pod does not start: DRIVER_FAILED: .*the card is broken",
            r"E +Warning FailedPrepareDynamicResources( \(x\d+\))? from kubelet \d+s ago, as above$",
            r"-+ other events of the local cluster -+",
        ]
    )


@pytest.mark.full
def test_markers_of_a_test_come_before_those_of_its_module_and_the_ini_file(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import pytest
        from driver import Fpga
        from dra_devkit.testing import Timers

        class Other(Fpga):
            name = "other.example.com"

        pytestmark = pytest.mark.dra(driver=Other, nodes=["a", "b"], health_interval=0.5)

        def test_module(node, local_cluster):
            assert (node.driver.name, local_cluster.nodes) == ("other.example.com", ["a", "b"])
            assert node.driver.settings.health_interval == 0.5

        @pytest.mark.dra(timers=Timers(slice_wipe_delay=0.1))
        def test_timers(node, api):
            node.stop()
            node.wait_published([])

        @pytest.mark.dra(driver=Fpga, host={"functions": []})
        def test_nearest(node, api, local_cluster):
            assert (node.driver.name, local_cluster.nodes) == ("fpga.example.com", ["a", "b"])
            assert not node.published()

        def test_several_plugins(local_cluster, api):
            with local_cluster.plugin(Fpga, "a"), local_cluster.plugin(Other, "b"):
                assert set(api.published(Fpga.name).pools) == {"a"}
                assert set(api.published(Other.name).pools) == {"b"}
        """
    )
    run(author).assert_outcomes(passed=4)


@pytest.mark.full
def test_a_test_without_a_driver_is_reported_with_how_to_name_one(author: pytest.Pytester) -> None:
    author.makefile(".ini", pytest="[pytest]\n")
    author.makepyfile("def test_it(node): pass")
    result = run(author)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no driver is configured: set dra_driver*"])


@pytest.mark.full
def test_a_driver_or_host_that_is_mistyped_in_the_ini_file_is_one_sentence_that_names_the_option(
    author: pytest.Pytester,
) -> None:
    author.makepyfile("def test_it(node): pass")
    for option, value, says in (
        ("dra_driver", "drivr.py", "drivr.py is not a file: *did you mean 'driver.py'?*"),
        ("dra_host", "hosts.yaml", " hosts.yaml: neither a file nor one of *, did you mean '*.yaml'?*"),
    ):
        kept = [line for line in INI.splitlines() if not line.startswith(option)]
        author.makefile(".ini", pytest="\n".join([*kept, f"{option} = {value}"]))
        result = run(author)
        result.assert_outcomes(errors=1)
        colon = ": " if option == "dra_driver" else ""
        result.stdout.fnmatch_lines([f"{author.path / 'pytest.ini'}: {option}{colon}{says}"])
        result.stdout.no_fnmatch_line("*During handling*")


@pytest.mark.full
def test_a_marker_s_misspelt_name_is_reported_with_the_nearest(author: pytest.Pytester) -> None:
    author.makepyfile("import pytest\n@pytest.mark.dra(health_intervall=1.0)\ndef test_it(node): pass")
    result = run(author)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*does not accept 'health_intervall', did you mean 'health_interval'?*"])


@pytest.mark.full
def test_options_of_the_driver_that_are_wrong_are_one_sentence(author: pytest.Pytester) -> None:
    author.makepyfile("import pytest\n@pytest.mark.dra(options={'slots': 1})\ndef test_it(node): pass")
    result = run(author)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["options: Fpga has no option 'slots': it declares no options*"])


def test_nothing_heavy_is_imported_before_a_fixture_is_used(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import sys

        def test_it():
            assert not {"grpc", "dra_devkit.localcluster", "dra_devkit.testing.facade"} & set(sys.modules)
        """
    )
    run(author).assert_outcomes(passed=1)


@pytest.mark.full
def test_an_installed_package_needs_no_word_in_pytest_s_settings(
    author: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry point of pyproject.toml, as an installation writes it down."""
    points = tomllib.loads((ROOT / "packages/devkit/pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = author.mkdir("installed") / "dra_kubeletplugin-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dra-kubeletplugin\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (info.parent, *(source.parent for source in SOURCES)))))
    author.makepyfile("def test_it(local_cluster): assert local_cluster.kubeconfig.is_file()")
    author.runpytest_subprocess("-p", "no:asyncio", timeout=LONGEST).assert_outcomes(passed=1)


RELEASES = """
import pytest

@pytest.mark.parametrize("wanted", ["1.35"])
def test_the_option_states_the_release(local_cluster, wanted):
    assert local_cluster.inner.features.release == wanted

@pytest.mark.dra(kubernetes="1.37", feature_gates={"DRADeviceCompatibilityGroups": True})
def test_a_marker_reports_it_for_one_test(local_cluster):
    assert local_cluster.inner.features.release == "1.37"
    assert local_cluster.inner.features.has("DRADeviceCompatibilityGroups")
"""


@pytest.mark.full
def test_a_release_is_reported_by_an_option_and_by_a_marker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RELEASES)
    pytester.runpytest_subprocess("--kubernetes", "1.35", timeout=LONGEST).assert_outcomes(passed=2)


@pytest.mark.full
def test_a_failure_is_reported_where_the_test_requested_it(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import pytest

        def test_waits(api):
            api.wait("the moon", lambda: False, 0.01)

        def test_runs(node):
            node.run_pod(count=9, progress_timeout=0)

        def test_none(api):
            api.wait_running("ghost")

        def test_faults(api):
            api.delay(-1)

        @pytest.mark.dra(nodes=["a", "a"])
        def test_nodes(api):
            pass
        """
    )
    result = run(author)
    result.assert_outcomes(failed=4, errors=1)
    result.stdout.fnmatch_lines(["*nodes: a is listed twice*"])
    frames = [line for line in result.outlines if ".py:" in line and line.rstrip().endswith(("Error", ":"))]
    assert frames
    assert not [line for line in frames if "/testing/" in line or "/concurrent/" in line], frames


@pytest.mark.full
def test_mistakes_of_a_test_are_reported_in_one_sentence_with_the_nearest_name(author: pytest.Pytester) -> None:
    author.makepyfile(
        """
        import pytest
        from dra_devkit.testing import ClaimSpec, PodError, Request

        def test_class(node, api):
            with pytest.raises(PodError, match="device class devicse does not exist, did you mean 'devices'?"):
                node.run_pod("p", ClaimSpec(Request("r", "devicse")), progress_timeout=0)
            with pytest.raises(PodError, match="there is no pod pp in namespace default, did you mean 'p'?"):
                api.wait_running("pp")
            with pytest.raises(TypeError, match="'param', did you mean 'parameters'?"):
                node.run_pod(param={})

        @pytest.mark.dra(driver="drivr.py")
        def test_driver(node): pass

        @pytest.mark.dra(driver=3)
        def test_no_driver(node): pass

        @pytest.mark.dra(nodes="node-1")
        def test_nodes(node): pass

        @pytest.mark.dra(host="nope")
        def test_host(node): pass

        @pytest.mark.dra(environment={"A": 1})
        def test_environment(node): pass

        @pytest.mark.dra(timers=3)
        def test_timers(node): pass
        """
    )
    result = run(author)
    result.assert_outcomes(passed=1, errors=6)
    result.stdout.fnmatch_lines_random(
        [
            "@pytest.mark.dra: driver: drivr.py is not a file: *did you mean 'driver.py'?*",
            "@pytest.mark.dra(driver=3): use a class, or a text that `dra run` accepts",
            "@pytest.mark.dra(nodes='node-1'): use a list of names",
            "@pytest.mark.dra: host nope: neither a file nor one of *",
            "@pytest.mark.dra(environment): A is 1, not text",
            "@pytest.mark.dra(timers=3): use dra_devkit.testing.Timers(...)",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "dra_kubeletplugin/" not in result.stdout.str().replace("dra_kubeletplugin/__init__", "")
