package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"myelin/cni/spool"
	"myelin/endpoint"
)

// ReplayDeletes deletes what the plugin queued in runDir while no agent ran,
// then calls listen, which must open the agent's socket; between the two no
// plugin can queue another one. Call it after endpoint.Manager.Restore, with
// the reconcilers running.
//
// A deletion that fails stays queued for the next start and is part of the
// error, as is a file that can't be read; listen is called nevertheless, and
// opened tells whether it was successful.
func ReplayDeletes(ctx context.Context, log *slog.Logger, runDir string, manager *endpoint.Manager,
	listen func() error,
) (opened bool, err error) {
	queue := spool.Of(runDir)
	unlock, err := queue.Lock(ctx)
	if err != nil {
		return false, fmt.Errorf("replay deletes: %w", err)
	}
	defer unlock()
	err = queue.Drain(func(e spool.Entry) error {
		a := endpoint.Attachment{ContainerID: e.ContainerID, IfName: e.IfName}
		if err := manager.Delete(ctx, a); err != nil {
			return err
		}
		log.Info("pod deleted that was queued while no agent ran", "attachment", a)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("replay deletes: %w", err)
	}
	if failed := listen(); failed != nil {
		return false, errors.Join(err, failed)
	}
	return true, err
}
