from pipelines.flex import main

raise SystemExit(main("streaming"))
