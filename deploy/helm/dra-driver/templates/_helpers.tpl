{{- /* Made by `dra deploy`: a change here is lost. */}}
{{- define "dra.name" }}{{ .Values.name | default .Release.Name }}{{ end }}
{{- define "dra.namespace" }}{{ .Release.Namespace }}{{ end }}
{{- define "dra.driverName" }}{{ required "driverName: The driver's name, as ResourceSlices and DeviceClasses have it." .Values.driverName }}{{ end }}
{{- define "dra.image" }}{{ required "image: Image of the plugin and, where there is one, the controller." .Values.image }}{{ end }}
{{- define "dra.driverFile" }}{{ .Values.driverFile }}{{ end }}
{{- define "dra.kubeletRoot" }}{{ .Values.kubeletRoot }}{{ end }}
{{- define "dra.cdiRoot" }}{{ .Values.cdiRoot }}{{ end }}
{{- define "dra.logLevel" }}{{ .Values.logLevel }}{{ end }}
{{- define "dra.httpPort" }}{{ .Values.httpPort }}{{ end }}
{{- define "dra.controllerReplicas" }}{{ .Values.controllerReplicas }}{{ end }}
{{- define "dra.nodeLabel" }}{{ required "nodeLabel: With the feature nodeLabel: only nodes that have this label, whatever its value." .Values.nodeLabel }}{{ end }}
{{- define "dra.seLinuxType" }}{{ .Values.seLinuxType }}{{ end }}
{{- define "dra.resourceAPI" }}{{ .Values.resourceAPI }}{{ end }}
{{- define "dra.webhookReplicas" }}{{ .Values.webhookReplicas }}{{ end }}
{{- define "dra.webhookFailurePolicy" }}{{ .Values.webhookFailurePolicy }}{{ end }}
{{- define "dra.webhookCABundle" }}{{ required "webhookCABundle: With the feature webhookCABundle: who signed the webhook's certificate, PEM in base64." .Values.webhookCABundle }}{{ end }}
{{- define "dra.field" }}
{{- $pods := default dict (index . 0).Values.pods }}
{{- $given := index (default dict (index $pods (index . 1))) (index . 2) }}
{{- if kindIs "invalid" $given }}{{ $given = index (default dict $pods.all) (index . 2) }}{{ end }}
{{- if not (kindIs "invalid" $given) }}{{ toJson $given }}{{ end }}
{{- end }}
