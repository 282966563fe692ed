package cni

import (
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	apiv1 "myelin/api/v1"
	"myelin/endpoint"
)

// Longest texts that a request may carry, bytes. Names of Kubernetes objects
// are DNS subdomains (RFC 1123 section 2.1); a path is as long as Linux allows.
const (
	maxContainerID = 1024
	maxName        = 253
	maxPath        = 4096
)

// attachment checks what the plugin has checked already: the socket is open to
// other programs, too.
func attachment(in *apiv1.CNIAttachment) (endpoint.Attachment, error) {
	a := endpoint.Attachment{ContainerID: in.GetContainerId(), IfName: in.GetIfName()}
	if err := utils.ValidateContainerID(a.ContainerID); err != nil {
		return a, err
	}
	if err := utils.ValidateInterfaceName(a.IfName); err != nil {
		return a, err
	}
	return a, tooLong("container ID", a.ContainerID, maxContainerID)
}

func checkPod(r *apiv1.CNIAddRequest) error {
	pod := r.GetPod()
	if (pod.GetName() == "") != (pod.GetNamespace() == "") {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "pod is named by half",
			fmt.Sprintf("K8S_POD_NAMESPACE=%q, K8S_POD_NAME=%q: either both or none", pod.GetNamespace(),
				pod.GetName()))
	}
	for _, t := range []struct {
		what, text string
		limit      int
	}{
		{"K8S_POD_NAMESPACE", pod.GetNamespace(), maxName},
		{"K8S_POD_NAME", pod.GetName(), maxName},
		{"K8S_POD_UID", pod.GetUid(), maxName},
		{"network namespace", r.GetNetns(), maxPath},
	} {
		if err := tooLong(t.what, t.text, t.limit); err != nil {
			return err
		}
	}
	return nil
}

func tooLong(what, text string, limit int) error {
	if len(text) <= limit {
		return nil
	}
	return types.NewError(types.ErrInvalidEnvironmentVariables, what+" is too long",
		fmt.Sprintf("%d bytes, at most %d", len(text), limit))
}

// comparePrevious returns the first thing that the runtime believes since ADD
// and that is not so.
func comparePrevious(e *endpoint.Endpoint, r *apiv1.CNICheckRequest) error {
	if r.GetPrevious() == nil {
		return nil
	}
	pod := slices.IndexFunc(r.GetPrevious().GetInterfaces(), func(i *apiv1.CNIInterface) bool {
		return i.GetName() == e.IfName && i.GetSandbox() != ""
	})
	if pod < 0 {
		return fmt.Errorf("prevResult has no interface %s with a sandbox", e.IfName)
	}
	if mac := r.GetPrevious().GetInterfaces()[pod].GetMac(); mac != "" && mac != e.PodMAC.String() {
		return fmt.Errorf("prevResult has MAC %s for %s, the agent has %s", mac, e.IfName, e.PodMAC)
	}
	for _, addr := range e.Addresses() {
		want := fmt.Sprintf("%s/%d", addr, addr.BitLen())
		has := func(a *apiv1.CNIAddress) bool { return int(a.GetInterface()) == pod && a.GetPrefix() == want }
		if !slices.ContainsFunc(r.GetPrevious().GetAddresses(), has) {
			return fmt.Errorf("prevResult has no address %s for %s", want, e.IfName)
		}
	}
	return nil
}
