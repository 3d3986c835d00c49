"""The paper's tables and figures, and ours with them: `egm reproduce`.

A table is data (`tables/*.yaml`): each row names a recipe, a method, what it changes, a role and a budget. From there

    definitions   rows × kinds of recipe = cells          selection     which cells a command line asks for
    runs          cells × seeds = `egm train` commands    runner        many processes on one device
    judge         evaluation of one run                   records       results/*.json: one object a run
    comparison    mean ± std over seeds, verdicts         shown         a table with its records
    layout        methods as columns, marks               footnotes     sentences below a table
    run_list      every run: CSV and HTML                 measurements  files of benchmarks
    pages         docs/results.md, docs/results/          summary       the table of the README
    figure_data   results/figures.json                    figures       docs/figures/*.svg
"""
