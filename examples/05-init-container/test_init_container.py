from __future__ import annotations

from examples.conftest import Example


def test_the_init_container_has_the_gpu_of_the_main_container(example: Example) -> None:
    example.apply()
    main = example.gpus("init-container", "main")
    assert len(main) == 1
    assert example.gpus("init-container", "warm-up") == main
