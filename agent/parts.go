package agent

import (
	"log/slog"

	"myelin/agent/feature"
	"myelin/config"
	"myelin/doctor/check"
)

// features are those of an agent that is not started, for the parts that are of use without one.
func features() []*feature.Feature {
	return newAgent(config.Default(), "", slog.New(slog.DiscardHandler), nil).list
}

// Checks are the checks of `myelin doctor` that features bring.
func Checks() (list []check.Check) {
	for _, f := range features() {
		list = append(list, f.Checks...)
	}
	return list
}

// Commands are the commands of `myelin` that features bring.
func Commands() (list []feature.Command) {
	for _, f := range features() {
		list = append(list, f.Commands...)
	}
	return list
}
