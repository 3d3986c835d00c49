"""Makes the paper's tables and figures, and our own: `egm reproduce`.

A table is data (`tables/*.yaml`): each row names a recipe, a method, changed options, a role and a budget. The modules:

    definitions   rows × kinds of recipe = cells          selection     which cells a command line selects
    runs          cells × seeds = `egm train` commands    runner        many processes on one device
    judge         evaluation of one run                   records       results/*.json: one object per run
    comparison    mean ± std over seeds, verdicts         shown         a table with its records
    layout        methods as columns, marks               footnotes     sentences below a table
    run_list      every run: CSV and HTML                 measurements  files of benchmarks
    pages         docs/results.md, docs/results/          summary       the table of the README
    figure_data   results/figures.json                    figures       docs/figures/*.svg
"""
