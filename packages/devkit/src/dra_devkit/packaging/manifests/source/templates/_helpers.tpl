{{- define "dra.name" }}{{ .Values.name | default .Release.Name }}{{ end }}

{{- /* Stops the rendering if features conflict or if a parameter has no value. Prints nothing. */}}
{{- define "dra.validate" }}
{{- $source := .Files.Get "parameters.yaml" | fromYaml }}
{{- $features := .Values.features }}
{{- range $source.conflicts }}
{{- $applies := true }}
{{- range .enabled }}{{ if not (get $features .) }}{{ $applies = false }}{{ end }}{{ end }}
{{- range .disabled }}{{ if get $features . }}{{ $applies = false }}{{ end }}{{ end }}
{{- if $applies }}{{ fail .message }}{{ end }}
{{- end }}
{{- range $name, $parameter := omit $source.parameters "name" "namespace" }}
{{- $needed := or (not $parameter.needed) (index $features (default "" $parameter.needed)) }}
{{- if and $needed (not (index $.Values $name)) }}{{ fail (printf "%s: %s" $name $parameter.help) }}{{ end }}
{{- end }}
{{- end }}

{{- /*
Prints the DaemonSet or Deployment of a pod, with the fields that the value `pods` sets. Arguments: the root, and the name of the pod.
The name of the template contains the name of the pod: "dra.plugin" is the template of "plugin".
*/}}
{{- define "dra.workload" }}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $workload := include (printf "dra.%s" $name) $root | fromYaml }}
{{- $pod := $workload.spec.template }}
{{- $parts := dict "metadata" $pod.metadata "spec" $pod.spec "container" (first $pod.spec.containers) }}
{{- /* A change of the options replaces the pods. */}}
{{- $_ := set $pod.metadata "annotations" (dict "checksum/options" (toJson $root.Values.options | sha256sum)) }}
{{- $pods := default dict $root.Values.pods }}
{{- range $field, $rule := (fromYaml ($root.Files.Get "parameters.yaml")).podFields }}
{{- $value := index (default dict (index $pods $name)) $field }}
{{- if kindIs "invalid" $value }}{{ $value = index (default dict $pods.all) $field }}{{ end }}
{{- if not (kindIs "invalid" $value) }}
{{- if and (eq $name "plugin") (eq $field "affinity") $root.Values.features.nodeLabel }}
{{- fail "pods.plugin.affinity: this affinity would replace the affinity of the feature nodeLabel: add the label here, or switch nodeLabel off" }}
{{- end }}
{{- $part := get $parts $rule.of }}
{{- $old := get $part $field }}
{{- if and $rule.adds (kindIs "map" $value) }}{{ $value = merge (dict) $value (default dict $old) }}
{{- else if $rule.adds }}{{ $value = concat (default list $old) $value }}
{{- end }}
{{- $_ := set $part $field $value }}
{{- end }}
{{- end }}
{{- toYaml $workload | nindent 0 }}
{{- end }}
