// Calls of the library from several threads at once, each on several threads of its own: the same results as alone, and
// no data race. Built with the thread sanitizer by `make sanitize`. Arguments: rounds, seed.
#include <thread>

#include "cases.h"

int main(int count, char** arguments) {
  const int rounds = count > 1 ? atoi(arguments[1]) : 10;
  Random random(count > 2 ? static_cast<unsigned>(atoi(arguments[2])) : 1);
  for (int round = 0; round < rounds; ++round) {
    const bool int8_inputs = round % 2 == 1;
    Plan plan = random_plan(random, int8_inputs);
    plan.n = 200 + plan.n, plan.k = 100 + plan.k;
    Layer layer = make_layer(random, plan);
    const qd_weight& w = layer.weight;
    REQUIRE(qd_pack(&w, layer.codes.data(), layer.packed.data(), 3) == 0, "pack");
    // 40 rows are work enough for threads to be started
    const int64_t m = 40;
    std::vector<float> x(static_cast<size_t>(m * w.k));
    for (float& value : x) value = static_cast<float>(uniform(random, -1, 1));
    qd_inputs inputs{};
    inputs.bits = 8, inputs.symmetric = inputs.dynamic = 1;
    const auto run = [&](int32_t threads) {
      std::vector<float> y(static_cast<size_t>(m * w.n));
      const int32_t rc = int8_inputs ? qd_linear_int8(&w, &inputs, x.data(), m, w.k, y.data(), w.n, QD_FP32, threads)
                                     : qd_linear(&w, x.data(), m, w.k, y.data(), w.n, QD_FP32, threads);
      REQUIRE(rc == 0, "%d", rc);
      return y;
    };
    const std::vector<float> alone = run(1);
    std::vector<std::vector<float>> results(3);
    std::vector<std::thread> callers;
    for (std::vector<float>& result : results) callers.emplace_back([&] { result = run(3); });
    for (std::thread& caller : callers) caller.join();
    for (const std::vector<float>& result : results)
      REQUIRE(memcmp(result.data(), alone.data(), alone.size() * sizeof(float)) == 0, "threads change the result");
  }
  printf("%d layers, three callers at once\n", rounds);
  return 0;
}
