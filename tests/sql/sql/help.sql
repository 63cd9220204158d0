-- The topics, which do not hold a guide, and a function: its comment is its help.
SELECT dpml.help();
SELECT dpml.help('no such topic') = dpml.help() AS listed;
SELECT dpml.help('privacy') = dpml.help() AS listed;
SELECT dpml.help('gram');
