package operator_test

import (
	"myelin/kube"
	"myelin/operator"
	"myelin/test/kube/apiserver"
)

// detect looks for Cilium with the operator's rights.
func (*running) detect(c *cluster) (*operator.Cilium, error) {
	c.Helper()
	server, err := kube.NewServer(kube.Options{KubeConfig: c.server.KubeConfig(apiserver.Operator)})
	if err != nil {
		return nil, err
	}
	client, err := server.Client()
	if err != nil {
		return nil, err
	}
	return operator.DetectCilium(c.Context(), client)
}
