#!/bin/sh
# Kafka's broker and Spark's connector for the benches beside Kafka, by Maven: sh tools/kafka_jars.sh DIRECTORY, then
# KAFKA_HOME=DIRECTORY/kafka KAFKA_SPARK_JARS=DIRECTORY/spark. Never a dependency of FlintMQ.
set -eu
where=${1:?a directory for the jars}
mkdir -p "$where"
copy() {
    folder=$1
    shift
    {
        echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId>'
        echo '<version>1</version><dependencies>'
        for one in "$@"; do
            echo "$one" | { IFS=: read -r group name version; echo "<dependency><groupId>$group</groupId><artifactId>$name</artifactId><version>$version</version></dependency>"; }
        done
        echo '</dependencies></project>'
    } >"$where/${folder%%/*}.xml"
    mvn -q -B -f "$where/${folder%%/*}.xml" dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$where/$folder"
}
copy kafka/libs org.apache.kafka:kafka_2.13:4.1.0 org.apache.kafka:kafka-tools:4.1.0
copy spark org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0
