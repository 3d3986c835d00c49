"""The paper's tables and figures, and ours beside them: `egm reproduce`.

A table is data (`tables/*.yaml`): each row names a recipe, a method, what it changes, a role and a budget. From there

    definitions   rows × kinds of recipe = cells          runs        cells × seeds = `egm train` commands
    runner        many processes on one device            judge       evaluation of one run, with the draws of figures
    records       results/*.json: one object a run        comparison  mean ± std over seeds, paper, floor, marks
    rendering     terminal, Markdown, HTML                page        docs/results.md
    figure_data   results/figures.json                    figures     docs/figures/*.svg
"""
