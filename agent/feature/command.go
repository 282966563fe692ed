package feature

// Command is a command of `myelin` whose subcommands show tables of the agent.
type Command struct {
	Name, Short string
	Alias       string // another name, or empty
	Views       []View
}

// View is a subcommand that shows one table.
type View struct {
	Name, Short string
	Table       string
	// By is the column that the view's one argument selects a row by; empty: no
	// argument, and all rows. With Prefix the argument is a part of the table's
	// name instead.
	By     string
	Prefix bool
	// Arg is what help calls the argument; empty: as the column.
	Arg string
	// Absent says what it means that the agent has no such table; empty: the agent's own words do.
	Absent string
	// Multiline views have a line of text for each line of a cell; others join the lines.
	Multiline bool
}
