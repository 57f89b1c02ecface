{{- /* Made by `dra deploy`: changes here will be lost. */}}
{{- define "dra.name" }}{{ .Values.name | default .Release.Name }}{{ end }}
{{- define "dra.namespace" }}{{ .Release.Namespace }}{{ end }}
{{- define "dra.driverName" }}{{ required "driverName: Name of the driver in ResourceSlices and DeviceClasses." .Values.driverName }}{{ end }}
{{- define "dra.image" }}{{ required "image: Image of the plugin, and of the controller if the driver has one." .Values.image }}{{ end }}
{{- define "dra.driverFile" }}{{ .Values.driverFile }}{{ end }}
{{- define "dra.kubeletRoot" }}{{ .Values.kubeletRoot }}{{ end }}
{{- define "dra.cdiRoot" }}{{ .Values.cdiRoot }}{{ end }}
{{- define "dra.logLevel" }}{{ .Values.logLevel }}{{ end }}
{{- define "dra.httpPort" }}{{ .Values.httpPort }}{{ end }}
{{- define "dra.controllerReplicas" }}{{ .Values.controllerReplicas }}{{ end }}
{{- define "dra.nodeLabel" }}{{ required "nodeLabel: With the feature nodeLabel: the plugin runs on nodes that have this label, with any value." .Values.nodeLabel }}{{ end }}
{{- define "dra.seLinuxType" }}{{ .Values.seLinuxType }}{{ end }}
{{- define "dra.resourceAPI" }}{{ .Values.resourceAPI }}{{ end }}
{{- define "dra.webhookReplicas" }}{{ .Values.webhookReplicas }}{{ end }}
{{- define "dra.webhookFailurePolicy" }}{{ .Values.webhookFailurePolicy }}{{ end }}
{{- define "dra.webhookCABundle" }}{{ required "webhookCABundle: With the feature webhookCABundle: the CA of the webhook's certificate, PEM in base64." .Values.webhookCABundle }}{{ end }}
{{- define "dra.field" }}
{{- $pods := default dict (index . 0).Values.pods }}
{{- $given := index (default dict (index $pods (index . 1))) (index . 2) }}
{{- if kindIs "invalid" $given }}{{ $given = index (default dict $pods.all) (index . 2) }}{{ end }}
{{- if not (kindIs "invalid" $given) }}{{ toJson $given }}{{ end }}
{{- end }}
