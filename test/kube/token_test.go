// SPDX-License-Identifier: Apache-2.0

package kube

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ropewalk/ropewalk/test/expect"
)

// nodeToken returns a token as the kubelet gives it to the agent's pod: bound to the pod, which is bound to the node.
func (a *api) nodeToken(node string) string {
	a.Helper()
	token, err := a.askNodeToken(node)
	expect.NoError(a, err)
	return token
}

// askNodeToken is nodeToken for other goroutines than the test's.
func (a *api) askNodeToken(node string) (string, error) {
	pods := a.clients.CoreV1().Pods(namespace)
	name := a.account + "-" + node
	pod, err := pods.Get(a.Context(), name, metav1.GetOptions{})
	if err != nil {
		pod, err = pods.Create(a.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName: node, ServiceAccountName: a.account,
				Containers: []corev1.Container{{Name: "agent", Image: "agent"}},
			},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return "", err
	}
	tr, err := a.clients.CoreV1().ServiceAccounts(namespace).CreateToken(a.Context(), a.account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return tr.Status.Token, nil
}
